"""The streams of a fleet's tree, as topology.toml has them: one part for each city, one for region and centre.

``LAKEHOUSE`` is the aggregator.toml with which a rollup reads the centre.
"""

from aggregator.scenarios.fleet.nodes import ADVISORIES, REGISTRATION

LAKEHOUSE = """\
[hub]
servers = ["{centre}"]
domain = "centre"

[lakehouse]
path = "tables"
report_stream = "ARCHIVE"        # there is no mirror of it here
registration_interval = "{interval}ms"
choria_region = "eu"             # where plain advisories are from
"""
CITY_STREAMS = f"""
[[stream]]
name = "CHORIA_REGISTRATION"
subjects = ["{REGISTRATION}.>"]
max_age = "1d"

[[stream]]
name = "LIFECYCLE"
subjects = ["choria.lifecycle.>"]
max_age = "1d"
"""

TREE_STREAMS = f"""
[[stream]]                       # what the cities' agents send: samples, advisories, watermarks
name = "FLEET"
domain = "eu"
subjects = ["fleet.eu.>"]
max_age = "14d"
duplicate_window = "10m"
allow_atomic = true

[[stream]]                       # what is copied whole
name = "LIFECYCLE"
domain = "eu"
subjects = ["dub1.lifecycle.>", "lon1.lifecycle.>"]
storage = "memory"
max_messages = 10_000

[[stream]]                       # every sample once more, under the name that Choria's consumers know
name = "CHORIA_REGISTRATION"
domain = "eu"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.registration", destination = "{REGISTRATION}.{{{{wildcard(2)}}}}" }}]

[[stream]]                       # and every advisory
name = "CHORIA_REGISTRATION_ADVISORIES"
domain = "eu"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.advisory.*", destination = "{ADVISORIES}" }}]

[[stream]]                       # what the region's relay sends: samples of samples
name = "FLEET"
subjects = ["fleet.*.*.*.registration"]
max_age = "14d"
duplicate_window = "10m"
allow_atomic = true

[[stream]]
name = "CHORIA_REGISTRATION"
[[stream.source]]
name = "FLEET"
transforms = [{{ source = "fleet.*.*.*.registration", destination = "{REGISTRATION}.{{{{wildcard(2)}}}}" }}]

[[stream]]                       # of a city that runs Choria's own replicator
name = "PLAIN_ADVISORIES"
subjects = ["{ADVISORIES}"]

[[stream]]
name = "CHORIA_REGISTRATION_ADVISORIES"
[[stream.source]]
name = "CHORIA_REGISTRATION_ADVISORIES"
domain = "eu"
[[stream.source]]
name = "PLAIN_ADVISORIES"

[[stream]]                       # what the rollup reads: samples from the relay, all else from the cities
name = "ARCHIVE"
[[stream.source]]
name = "FLEET"
[[stream.source]]
name = "FLEET"
domain = "eu"
transforms = [{{ source = "fleet.*.*.*.advisory.*" }}, {{ source = "fleet.*.*.*.watermark" }}]
[[stream.source]]
name = "PLAIN_ADVISORIES"
"""
