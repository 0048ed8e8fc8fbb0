"""Settings are read whole or refused in one line that tells a person what to do."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from shared.instants import MINUTE
from shared.settings import Duration, FilePath, Settings, SettingsError, Size, load_settings

HUGE = "9" * 400
LONGEST = "9" * 5_000
"""More digits than Python reads as a whole number."""


class Policy(Settings, frozen=True):
    stale_after: Annotated[Duration, Meta(description="silence after which a sender is stale")] = Duration.of("12m")
    retire_after: Annotated[Duration, Meta(description="silence until it is forgotten")] = Duration.of("24h")
    size_trigger: Annotated[int, Meta(ge=0, description="bytes; 0 = off")] = 1024

    def __post_init__(self) -> None:
        if self.stale_after >= self.retire_after:
            raise ValueError("stale_after must be below retire_after")


class Header(Settings, frozen=True):
    prefix: str = ""


class Stream(Settings, frozen=True):
    name: Annotated[str, Meta(description="the block's name")]
    policy: Policy = Policy()
    header: Header | None = None
    limit: int | None = None


class Store(Settings, frozen=True):
    path: Annotated[FilePath, Meta(description="where the agent keeps its state")] = FilePath()
    max_outbox: Annotated[Size, Meta(description="limit of unsent data")] = Size.of("2GiB")


class AgentSettings(Settings, frozen=True):
    site: Annotated[str, Meta(description="where this agent runs")]
    store: Store = Store()
    streams: tuple[Stream, ...] = msgspec.field(default=(), name="stream")


def loaded(directory: Path, text: str) -> AgentSettings:
    path = directory / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, AgentSettings)


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(directory, text)
    line = str(caught.value)
    assert "\n" not in line
    prefix = f"{directory / 'agent.toml'}: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def test_a_whole_file_becomes_one_struct(tmp_path: Path) -> None:
    text = """
        site = "dub1"
        [store]
        path = "state/agent.db"
        max_outbox = "500MB"
        [[stream]]
        name = "nodes"
        [stream.policy]
        stale_after = "90s"
    """
    assert loaded(tmp_path, text) == AgentSettings(
        site="dub1",
        store=Store(path=FilePath(tmp_path / "state/agent.db"), max_outbox=Size(500_000_000)),
        streams=(Stream(name="nodes", policy=Policy(stale_after=Duration(90_000_000))),),
    )


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    settings = loaded(tmp_path, 'site = "dub1"\n[[stream]]\nname = "nodes"')
    assert settings.streams[0].policy.stale_after == 12 * MINUTE
    assert settings.store.path == ""


def test_an_absolute_path_stays(tmp_path: Path) -> None:
    assert loaded(tmp_path, 'site = "a"\nstore.path = "/var/lib/a.db"').store.path == "/var/lib/a.db"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'site = "a"\n[[stream]]\nname = "n"\n[stream.policy]\nstale_afer = "1m"',
            (
                "stream[0].policy.stale_afer: there is no such key, did you mean stale_after?"
                " (silence after which a sender is stale)"
            ),
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\nstale_after = "1m"',
            "stream[0].stale_after: there is no such key here, it belongs to [stream.policy]",
        ),
        ('site = "a"\nname = "n"', "name: there is no such key here, it belongs to [[stream]]"),
        ('site = "a"\nquux = 1', "quux: there is no such key; known here: site, store, stream"),
        ("[store]", "site: is required, but missing (where this agent runs)"),
        ('site = "a"\n[[stream]]', "stream[0].name: is required, but missing (the block's name)"),
        ("site = 5", "site: expected text in quotes, found a whole number (where this agent runs)"),
        ('site = "a"\nstore = 3', "store: expected a table, found a whole number"),
        ('site = "a"\nstream = 3', "stream: expected a list in [ ], found a whole number"),
        (
            'site = "a"\n[store]\nmax_outbox = "lots"',
            "store.max_outbox: not a size: 'lots', write for example 1024, 500MB or 2GiB (limit of unsent data)",
        ),
        (
            'site = "a"\n[store]\nmax_outbox = true',
            'store.max_outbox: expected a size such as "2GiB", found True (limit of unsent data)',
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\npolicy.stale_after = 720',
            (
                'stream[0].policy.stale_after: expected a duration in quotes such as "12m", found 720'
                " (silence after which a sender is stale)"
            ),
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\npolicy.stale_after = "12 minutes"',
            (
                "stream[0].policy.stale_after: not a duration: '12 minutes', write for example 90s, 12m, 1h30m or 7d"
                " (silence after which a sender is stale)"
            ),
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\npolicy.size_trigger = -1',
            "stream[0].policy.size_trigger: expected a whole number >= 0 (bytes; 0 = off)",
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\npolicy.stale_after = "24h"',
            "stream[0].policy: stale_after must be below retire_after",
        ),
        (
            f'site = "a"\n[store]\nmax_outbox = "{HUGE}"',
            f"store.max_outbox: larger than 8 EiB: '{HUGE}' (limit of unsent data)",
        ),
        (
            f'site = "a"\n[store]\nmax_outbox = {HUGE}',
            "store.max_outbox: a whole number has no more than 64 bits (limit of unsent data)",
        ),
        (
            f'site = "a"\n[[stream]]\nname = "n"\npolicy.size_trigger = -{HUGE}',
            "stream[0].policy.size_trigger: a whole number has no more than 64 bits (bytes; 0 = off)",
        ),
        (f"site = {LONGEST}", "not valid TOML: a whole number has no more than 64 bits"),
        ("site = " + "[" * 5_000, "not valid TOML: it is nested too deeply"),
        (
            f'site = "a"\n[[stream]]\nname = "n"\npolicy.stale_after = "{HUGE}s"',
            (
                f"stream[0].policy.stale_after: longer than a hundred years: '{HUGE}s'"
                " (silence after which a sender is stale)"
            ),
        ),
        (
            'site = "a"\n[store]\npath = "~no-such-user/agent.db"',
            (
                "store.path: whose home is meant by '~no-such-user/agent.db' is not known: write the whole path"
                " (where the agent keeps its state)"
            ),
        ),
        (
            'site = "a"\n[store]\npath = "agent\\u0000.db"',
            "store.path: a path has no NUL in it: 'agent\\x00.db' (where the agent keeps its state)",
        ),
        ('site = "a"\nsite = "b"\n', "not valid TOML: cannot overwrite a value (at line 2, column 11)"),
        ("site = dub1", "not valid TOML: invalid value (at line 1, column 8)"),
        (
            'site = "a"\n[stream]\nname = "n"\n[stream.policy]\nsize_trigger = 1',
            "stream: expected a list in [ ], found a table; write [[stream]] instead of [stream]",
        ),
        (
            'site = "a"\n[[store]]\npath = "p"',
            "store: expected a table, found a list in [ ]; write [store] instead of [[store]]",
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\n[[stream.policy]]\nsize_trigger = 1',
            (
                "stream[0].policy: expected a table, found a list in [ ];"
                " write [stream.policy] instead of [[stream.policy]]"
            ),
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\n[[stream.header]]\nprefix = "x"',
            (
                "stream[0].header: expected a table, found a list in [ ];"
                " write [stream.header] instead of [[stream.header]]"
            ),
        ),
        (
            'site = "a"\n[[stream]]\nname = "n"\nlimit = "3"',
            "stream[0].limit: expected a whole number, found text in quotes",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key_and_its_meaning(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(tmp_path, text) == line


@pytest.mark.parametrize(
    ("first", "second"), [("[stream]", "[[stream]]"), ("[stream]", "[stream]"), ("[[stream]]", " [stream]")]
)
def test_streams_that_begin_in_different_ways_are_refused_with_the_right_way(
    tmp_path: Path, first: str, second: str
) -> None:
    line = complaint(tmp_path, f'site = "a"\n{first}\nname = "n"\n{second}\nname = "m"')
    assert line.endswith("; begin each stream with [[stream]]")


def test_a_single_table_that_is_declared_twice_is_not_taken_for_one_of_several(tmp_path: Path) -> None:
    assert complaint(tmp_path, 'site = "a"\n[store]\n[store]\n').endswith(")")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="agent.toml: there is no such file$"):
        load_settings(tmp_path / "agent.toml", AgentSettings)


def test_a_directory_is_not_a_settings_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory$"):
        load_settings(tmp_path, AgentSettings)


def test_bytes_that_are_not_text_are_located(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(b'site = "\xff"')
    with pytest.raises(SettingsError, match="not UTF-8 text: byte 8 is 0xff$"):
        load_settings(path, AgentSettings)
