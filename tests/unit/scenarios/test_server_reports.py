"""What the servers of a system say of themselves is laid out by server, by cluster and by meta group."""

from aggregator.scenarios.server_reports import (
    ClusterSize,
    GroupMember,
    JetStreamAnswer,
    JetStreamState,
    MetaGroup,
    Peer,
    Server,
    ServerState,
    Statistics,
    clusters,
    format_jetstream,
    format_meta_group,
    format_servers,
    meta_group,
)

STARTED, NOW = "2026-01-01T00:00:00Z", "2026-01-01T01:02:00Z"


def state(name: str, cluster: str = "c1") -> ServerState:
    server = Server(name, cluster, "2.15.1", jetstream=True, tags=["az:1"], time=NOW)
    return ServerState(server, Statistics(STARTED, mem=20 << 20, cpu=1.5, cores=2, connections=3), round_trip=1_500)


def answer(name: str, leader: str, *replicas: Peer) -> JetStreamAnswer:
    meta = MetaGroup(leader, f"id-{leader}", 1 + len(replicas), list(replicas))
    return JetStreamAnswer(Server(name, "c1"), JetStreamState(streams=2, messages=1_200, meta_cluster=meta))


def test_servers_are_listed_and_counted_by_cluster() -> None:
    states = [state("a"), state("b"), state("c", "c2")]
    assert clusters(states) == [ClusterSize("c1", 2, 6), ClusterSize("c2", 1, 3)]
    lines = format_servers(states).splitlines()
    assert lines[1].split() == [
        *("a", "c1", "2.15.1", "yes", "3", "0", "0", "20", "MiB", "1.5", "2", "0", "1h", "2m", "1.5ms")
    ]
    assert lines[-2].split() == ["c1", "2", "6"]


def test_the_meta_group_is_told_by_its_leader() -> None:
    peers = (
        Peer("c", "id-c", current=False, offline=True, active=5_000_000_000, lag=7),
        Peer("a", "id-a", current=True, active=1_000),
    )
    states = [answer("a", "b"), answer("b", "b", *peers), answer("c", "b")]
    members = meta_group(states)
    assert members == [
        GroupMember("a", "id-a", current=True, online=True, active=1_000),
        GroupMember("b", "id-b", leads=True),
        GroupMember("c", "id-c", current=False, online=False, active=5_000_000_000, lag=7),
    ]
    assert format_meta_group(members).splitlines()[3].split() == ["c", "id-c", "no", "no", "5s", "7"]
    assert "b*" in format_jetstream(states)


def test_without_a_leader_there_is_no_meta_group() -> None:
    assert meta_group([answer("a", ""), answer("b", "")]) == []
