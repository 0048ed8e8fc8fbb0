"""A narrator prints each claim with its value, marks one that does not hold, and fails there."""

import asyncio
import os
import signal

import pytest

from tests.scenarios.narrator import Narrator


def test_a_claim_that_does_not_hold_is_marked_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="two and two"):
        Narrator().show("two and two", 5, 4, note="four")
    assert capsys.readouterr().out == "  ! two and two: 5, not 4\n      (the documentation: four)\n"


def test_sentences_are_broken_where_the_terminal_ends_and_tables_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(width=20)
    narrator.show("ten and ten are", {"in one word": "twenty"}, {"in one word": "twenty"})
    narrator.output("x" * narrator.room)
    narrator.output("a table may be wider than that")
    narrator.sentence("a sentence may not be")
    assert capsys.readouterr().out.splitlines() == [
        "  + ten and ten are:",
        "      in one word:",
        "        twenty",
        f"    {'x' * 16}",
        "    a table may be wider than that",
        "    a sentence may",
        "      not be",
    ]


async def test_a_scenario_stays_until_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
    await Narrator(stays=True).stay("nats stream report")
    assert capsys.readouterr().out.endswith("in another terminal:\n    nats stream report\n")
