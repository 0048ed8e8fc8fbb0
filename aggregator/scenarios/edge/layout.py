"""The streams of hub and spokes, as topology.toml has them: by domain in one account, by place in others."""

COMMANDS = """
[[stream]]
name = "cnc"
subjects = ["cnc"]
replicas = 3
"""

CNC = (
    COMMANDS
    + """
[[stream]]
name = "recv-cnc"
domain = "spoke-1"
replicas = 3
[stream.mirror]
name = "cnc"
domain = "hub"

[[stream]]
name = "recv-cnc"
domain = "spoke-2"
replicas = 3
[stream.mirror]
name = "cnc"
domain = "hub"
"""
)

SHARED_SUBJECT = """
[[stream]]
name = "test"
domain = "spoke-1"
subjects = ["test"]
replicas = 3

[[stream]]
name = "test"
domain = "spoke-2"
subjects = ["test"]
replicas = 3
"""

AGGREGATE = """
[[stream]]
name = "aggregate"
replicas = 3
[[stream.source]]
name = "test"
domain = "spoke-1"
[[stream.source]]
name = "test"
domain = "spoke-2"
"""

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

ISOLATED = """
[[stream]]
name = "test"
place = "LEAFACC-spoke-1"
subjects = ["test"]
replicas = 3

[[stream]]
name = "test"
place = "LEAFACC-spoke-2"
subjects = ["test"]
replicas = 3
"""

THROUGH_ACCOUNTS = """
[[stream]]
name = "aggregate"
place = "HUBACC"
replicas = 3
[[stream.source]]
name = "test"
place = "LEAFACC-spoke-1"
api = "$JS.leafacc.spoke-1.API"
deliver = "deliver.leafacc.spoke-1.hubacc.hub.aggregate"
[[stream.source]]
name = "test"
place = "LEAFACC-spoke-2"
api = "$JS.leafacc.spoke-2.API"
deliver = "deliver.leafacc.spoke-2.hubacc.hub.aggregate"
"""
