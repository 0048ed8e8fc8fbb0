"""A truth file says who was up when, also when its writer was killed in the middle of a line."""

import pytest

from shared.truth import Truth, TruthError, TruthHeader, TruthLine, TruthThrough, UpInterval, encode_line, read_truth

HEADER = TruthHeader(
    seed=7, registration_interval=300, jitter=0, started_at_us=1_000, ended_at_us=None, script="[[outage]]\n"
)
GOLDEN = (
    b'{"record":"header","protocol":"muster:truth:1","seed":7,"registration_interval":300,"jitter":0,'
    b'"started_at_us":1000,"ended_at_us":null,"script":"[[outage]]\\n"}\n'
    b'{"record":"up","site":"dub1","sender":"n1","up_from_us":1000,"up_to_us":null,"gone":false}\n'
    b'{"record":"up","site":"dub1","sender":"n1","up_from_us":1000,"up_to_us":2000,"gone":false}\n'
    b'{"record":"through","at_us":2500}\n'
)


def up(sender: str, up_from: int, up_to: int | None, *, gone: bool = False) -> UpInterval:
    return UpInterval(site="dub1", sender=sender, up_from_us=up_from, up_to_us=up_to, gone=gone)


def truth_through(through: int, *intervals: UpInterval) -> Truth:
    lines: list[TruthLine] = [HEADER, *intervals, TruthThrough(at_us=through)]
    return read_truth(encode_line(line) for line in lines)


def test_lines_are_golden() -> None:
    lines: list[TruthLine] = [HEADER, up("n1", 1_000, None), up("n1", 1_000, 2_000), TruthThrough(at_us=2_500)]
    assert b"".join(map(encode_line, lines)) == GOLDEN


def test_last_line_of_an_up_interval_counts() -> None:
    truth = read_truth(GOLDEN.splitlines())
    assert truth.intervals("dub1", "n1") == [up("n1", 1_000, 2_000)]
    assert truth.senders == [("dub1", "n1")]


@pytest.mark.parametrize("cut", range(len(GOLDEN) - len(b'{"record":"through","at_us":2500}\n'), len(GOLDEN) - 1))
def test_a_torn_last_line_is_passed_over(cut: int) -> None:
    truth = read_truth(GOLDEN[:cut].splitlines(keepends=True))
    assert truth.intervals("dub1", "n1") == [up("n1", 1_000, 2_000)]


def test_a_broken_line_in_the_middle_is_named() -> None:
    lines = GOLDEN.splitlines()
    lines[1] = lines[1][:-5]
    with pytest.raises(TruthError, match="^line 2: not a line of a truth file"):
        read_truth(lines)


@pytest.mark.parametrize("text", [b"", GOLDEN[GOLDEN.index(b"\n") + 1 :]])
def test_a_file_without_a_header_is_refused(text: bytes) -> None:
    with pytest.raises(TruthError, match="^line 1: .*header"):
        read_truth(text.splitlines())


def test_an_orderly_end_is_where_knowledge_ends() -> None:
    closing = TruthHeader(
        seed=7, registration_interval=300, jitter=0, started_at_us=1_000, ended_at_us=9_000, script=""
    )
    truth = read_truth([*GOLDEN.splitlines(), encode_line(closing)])
    assert truth.header == closing
    assert truth.through == 9_000


def test_without_an_orderly_end_knowledge_ends_at_the_last_mark() -> None:
    assert read_truth(GOLDEN.splitlines()).through == 2_500
    with pytest.raises(ValueError, match="known through 2500 only"):
        read_truth(GOLDEN.splitlines()).up_spans("dub1", "n1", 1_000, 2_501)


def test_up_and_down_spans_add_up_to_the_window() -> None:
    truth = truth_through(10_000, up("n1", 1_000, 2_000), up("n1", 3_000, 4_000), up("n1", 5_000, None))
    assert truth.up_spans("dub1", "n1", 1_500, 8_000) == [(1_500, 2_000), (3_000, 4_000), (5_000, 8_000)]
    assert truth.down_spans("dub1", "n1", 1_500, 8_000) == [(2_000, 3_000), (4_000, 5_000)]


def test_time_before_the_first_word_and_after_the_last_is_down() -> None:
    truth = truth_through(10_000, up("n1", 3_000, 4_000, gone=True))
    assert truth.down_spans("dub1", "n1", 1_000, 10_000) == [(1_000, 3_000), (4_000, 10_000)]
    assert truth.down_spans("dub1", "stranger", 1_000, 10_000) == [(1_000, 10_000)]


def test_a_break_is_time_down_however_short() -> None:
    truth = truth_through(10_000, up("n1", 1_000, 2_000), up("n1", 2_001, None))
    assert truth.down_spans("dub1", "n1", 1_000, 2_000) == []
    assert truth.down_spans("dub1", "n1", 2_001, 10_000) == []
    assert truth.down_spans("dub1", "n1", 1_999, 2_002) == [(2_000, 2_001)]
