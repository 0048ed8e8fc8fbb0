"""The streams of hub and spokes, as topology.toml has them: by domain in one account, by place in others."""

from aggregator.scenarios.edge.network import SPOKES

COMMANDS = """
[[stream]]
name = "cnc"
subjects = ["cnc"]
replicas = 3
"""

CNC = COMMANDS + "".join(
    f"""
[[stream]]
name = "recv-cnc"
domain = "{spoke}"
replicas = 3
[stream.mirror]
name = "cnc"
domain = "hub"
"""
    for spoke in SPOKES
)

SHARED_SUBJECT = "".join(
    f"""
[[stream]]
name = "test"
domain = "{spoke}"
subjects = ["test"]
replicas = 3
"""
    for spoke in SPOKES
)

AGGREGATE = """
[[stream]]
name = "aggregate"
replicas = 3
""" + "".join(f'[[stream.source]]\nname = "test"\ndomain = "{spoke}"\n' for spoke in SPOKES)

BACKUP = """
[[stream]]
name = "backup-test-spoke-1"
domain = "spoke-2"
replicas = 3
[stream.mirror]
name = "test"
domain = "spoke-1"
"""

CROSS_ACCOUNT = """
[[stream]]
name = "crossacc"
place = "IMPORTER"
replicas = 3
[stream.mirror]
name = "aggregate"
place = "hub"
api = "JS.test@hub.API"
deliver = "deliver.importer.crossacc"
"""

ISOLATED = "".join(
    f"""
[[stream]]
name = "test"
place = "LEAFACC-{spoke}"
subjects = ["test"]
replicas = 3
"""
    for spoke in SPOKES
)

THROUGH_ACCOUNTS = """
[[stream]]
name = "aggregate"
place = "HUBACC"
replicas = 3
""" + "".join(
    f"""[[stream.source]]
name = "test"
place = "LEAFACC-{spoke}"
api = "$JS.leafacc.{spoke}.API"
deliver = "deliver.leafacc.{spoke}.hubacc.hub.aggregate"
"""
    for spoke in SPOKES
)
