"""What a mode, a target or a heartbeat cannot be is told in one line, and so are blocks in each other's way."""

import pytest

from tests.support.agent.agent_file import COMPLETE, SMALLEST, complaint, parsed, with_line


def in_mode(mode: str, lines: str = "", *, sender: bool = True) -> str:
    """Write a block in a mode, with further lines of the block."""
    text = SMALLEST.replace('name = "nodes"', f'name = "nodes"\nmode = "{mode}"')
    return (text if sender else text[: text.index("[stream.sender]")]) + lines


@pytest.mark.parametrize(
    ("probe", "interval", "blind_after", "is_remarked"),
    [
        ("false", "91s", "3m", True),
        ("false", "90s", "3m", False),
        ("true", "91s", "3m", False),
        ("false", "91s", "4m", False),
    ],
)
def test_heartbeats_that_are_too_rare_to_prove_a_quiet_stream_are_remarked(
    probe: str, interval: str, blind_after: str, is_remarked: bool
) -> None:
    heartbeat = f'[stream.heartbeat]\ninterval = "{interval}"\nsubject = "alive"\n'
    text = in_mode("sample", f'{heartbeat}[stream.policy]\nblind_after = "{blind_after}"\n')
    block = parsed(text.replace('stream = "REGISTRATION"', f'stream = "REGISTRATION"\nprobe = {probe}')).stream[0]
    remedy = "set source.probe = true, or heartbeat.interval to 1m 30s or less, half of blind_after"
    assert block.remark[1] == (remedy if is_remarked else "")


OF_CONTENT = ("size_trigger = 0", 'force_path = "urgent"', 'digest_paths = ["*"]')
NO_EFFECT = {"copy": ('sample_interval = "2h"', 'retire_after = "7d"', *OF_CONTENT), "relay": OF_CONTENT}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (in_mode("sample", sender=False), 'mode "sample" needs [stream.sender]: what identifies a sender'),
        (
            in_mode("relay", sender=False),
            'mode "relay" needs [stream.sender]: what identifies a sender, as at the sites',
        ),
        (
            in_mode("relay").replace('json_path = "sender"', "subject_token = 3"),
            'mode "relay" tells senders by json_path or header: subjects there are the fleet\'s',
        ),
        (
            in_mode("sample", '[stream.target]\nremove = "choria"'),
            'target.remove takes a part out of copied subjects, and mode "sample" has none: take it out',
        ),
        (
            in_mode("copy"),
            'sender has no effect in mode "copy", which identifies nobody: take [stream.sender] out',
        ),
        *(
            (
                in_mode(mode, f"[stream.policy]\n{line}", sender=mode == "relay"),
                f'policy.{line.partition(" ")[0]} has no effect in mode "{mode}": take it out',
            )
            for mode, lines in NO_EFFECT.items()
            for line in lines
        ),
        (
            in_mode("relay").replace('json_path = "sender"', 'json_path = "sender"\nbatch = "lines"'),
            'sender.batch has no effect in mode "relay", which passes on batches unsampled: take it out',
        ),
        *(
            (
                in_mode(mode, '[stream.goodbye]\njson_path = "type"\nvalues = ["shutdown"]', sender=mode == "relay"),
                f'goodbye has no effect in mode "{mode}", which watches no senders: take it out',
            )
            for mode in ("copy", "relay")
        ),
        (
            in_mode("relay", '[stream.target]\nprefix = "up"'),
            'target has no effect in mode "relay", which keeps subjects as they are: take it out',
        ),
        (
            in_mode("relay", '[stream.heartbeat]\nsubject = "a"\ninterval = "1m"'),
            'heartbeat is not for mode "relay": what the sites send keeps its stream moving; take it out',
        ),
    ],
)
def test_table_that_a_mode_lacks_or_cannot_use_is_named(text: str, said: str) -> None:
    assert complaint(text) == f"stream[0]: {said} (what to read)"


def test_removal_that_leaves_no_subject_is_refused() -> None:
    text = in_mode("copy", '[stream.target]\nremove = "registration"', sender=False)
    said = "target.remove 'registration' leaves nothing of the subject 'registration': shorten it"
    assert complaint(text.replace("[stream.source]", '[stream.source]\nfilter_subject = "registration"')) == (
        f"stream[0]: {said} (what to read)"
    )


@pytest.mark.parametrize("prefix", ["up..to", ".up", "up.>", "up.*", "up to", "$JS.API"])
def test_prefix_that_is_no_part_of_a_subject_is_refused(prefix: str) -> None:
    said = f"prefix {prefix!r} is no part of a subject: write tokens joined by single dots (where records go)"
    assert complaint(with_line("stream.target", "prefix", f'prefix = "{prefix}"')) == f"stream[0].target: {said}"


def test_removal_of_what_no_subject_holds_is_refused() -> None:
    said = "stream[0].target: remove 'choria.>' can stand in no subject: write the part as subjects have it"
    assert complaint(with_line("stream.target", "remove", 'remove = "choria.>"')) == f"{said} (where records go)"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('interval = "30s"', "interval and subject belong together, one is missing"),
        ('subject = "a.b"', "interval and subject belong together, one is missing"),
        ('interval = "999ms"\nsubject = "a.b"', "interval must be 1s or longer"),
        (
            'interval = "30s"\nsubject = "a.>"',
            "subject 'a.>' cannot be published on: write tokens joined by single dots",
        ),
    ],
)
def test_heartbeat_that_cannot_be_is_refused(lines: str, said: str) -> None:
    assert (
        complaint(f"{SMALLEST}[stream.heartbeat]\n{lines}") == f"stream[0].heartbeat: {said} (messages on idle streams)"
    )


def test_heartbeat_that_the_block_would_not_read_is_refused() -> None:
    text = SMALLEST.replace("[stream.source]", '[stream.source]\nfilter_subject = "registration.*"')
    said = "heartbeat.subject 'beat' does not pass source.filter_subject 'registration.*'"
    heartbeat = '[stream.heartbeat]\ninterval = "30s"\nsubject = "beat"'
    assert complaint(text + heartbeat) == f"stream[0]: {said} (what to read)"


# Several blocks


def another(old: str, new: str) -> str:
    """Write a second block like the first, but for one thing."""
    return COMPLETE + COMPLETE[COMPLETE.index("[[stream]]") :].replace(old, new)


def test_blocks_of_one_name_are_refused() -> None:
    said = "two [[stream]] blocks are named 'nodes': give each a name of its own"
    assert complaint(another("REGISTRATION", "OTHERS")) == said


def test_blocks_that_share_a_consumer_are_refused() -> None:
    said = "the blocks 'nodes' and 'others' both read stream REGISTRATION through consumer muster-dub1"
    assert complaint(another('"nodes"', '"others"')) == f"{said}: give one of them another source.consumer"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"muster-dub1"', '"muster-others"'),
        ('stream = "REGISTRATION"', 'stream = "OTHERS"'),
        ('domain = ""\nstream', 'domain = "hub"\nstream'),
        ("127.0.0.1:4222", "127.0.0.2:4222"),
    ],
)
def test_blocks_that_read_apart_are_taken(old: str, new: str) -> None:
    assert len(parsed(another(old, new).replace('name = "nodes"', 'name = "others"', 1)).stream) == 2
