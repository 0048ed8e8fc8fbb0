"""A master that cannot be had is said at once and in one line: Spark would try for a minute."""

import re
import socket

import pytest

from aggregator.lakehouse.spark.master import MasterUnreachable, check_master
from tests.support.nats.free_ports import free_ports


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"])
def test_what_is_not_a_standalone_master_is_left_to_spark(master: str) -> None:
    check_master(master)


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as standby:
        (nobody,) = free_ports(1)
        check_master(f"spark://127.0.0.1:{nobody},127.0.0.1:{standby.getsockname()[1]}")


@pytest.mark.parametrize("master", ["", "lokal", "spark://", "spark://host", "http://host:7077", "spark://a:1,b"])
def test_what_is_no_master_is_said(master: str) -> None:
    with pytest.raises(MasterUnreachable, match="not a Spark master: "):
        check_master(master)


@pytest.mark.parametrize("master", ["yarn", "YARN", "k8s://https://kubernetes:6443", "k8s://"])
def test_a_cluster_whose_workers_have_no_muster_is_refused(master: str) -> None:
    with pytest.raises(MasterUnreachable, match=re.escape(f"{master}: workers there have no Muster")):
        check_master(master)


def test_a_master_that_does_not_answer_is_said_with_the_reason() -> None:
    (nobody,) = free_ports(1)
    with pytest.raises(MasterUnreachable) as refusal:
        check_master(f"spark://127.0.0.1:{nobody}")
    assert str(refusal.value) == (
        f"no Spark master answers at spark://127.0.0.1:{nobody} (127.0.0.1:{nobody}: Connection refused): start it, or"
        " name another"
    )
