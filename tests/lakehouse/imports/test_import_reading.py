"""Other systems' files are read as they were told to be, and what cannot be read says why. No Spark here."""

import bz2
import fcntl
import gzip
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from aggregator.lakehouse.imports import staging
from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.name_shape import InvalidShape, NameShape
from aggregator.lakehouse.imports.rows import ImportedSpan, RowReader, SenderName, Unreadable
from aggregator.lakehouse.imports.staging import Staged, stage, staging_area
from shared.instants import SECOND, parse_instant

PLAIN: dict[str, Any] = {
    "source": "s",
    "sender": ("host",),
    "start": "begin",
    "stop": "end",
    "always": "down",
    "time": "s",
}
COLUMNS = ("host", "begin", "end")
NOW = parse_instant("2026-11-22T12:00:00Z")


def silent(_line: str) -> None:
    """Take what would be told."""


def staged(path: Path, text: str | bytes, **told: Any) -> Staged:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return stage(path, Mapping(**PLAIN | told), None, NOW, silent)


@pytest.mark.parametrize(
    ("shape", "name", "parts"),
    [
        ("{region}/{site}/{cluster}/{}", "G1/site1/c1/node1", {"region": "G1", "site": "site1", "cluster": "c1"}),
        ("{}.{rack}.{site}.example.net", "web.r7.dub1.example.net", {"rack": "r7", "site": "dub1"}),
        ("sys{site}-{sender}", "sys3-12-1", {"site": "3", "sender": "12-1"}),
        ("{site}/{}", "no-slash", None),
        ("{site}/{}", "/empty", None),
    ],
)
def test_a_shape_names_the_parts_of_a_name(shape: str, name: str, parts: dict[str, str] | None) -> None:
    assert NameShape(shape).parts(name) == parts


@pytest.mark.parametrize("shape", ["{}", "plain", "{a}{b}", "{a}/{a}", "{a b}/{}", "{a}/{"])
def test_a_shape_that_says_nothing_certain_is_refused(shape: str) -> None:
    with pytest.raises(InvalidShape):
        NameShape(shape)


@pytest.mark.parametrize(
    ("told", "last", "found"),
    [
        ({"stop": None, "duration": "end"}, "60", 100_060),
        ({"stop": None, "duration": "end", "unit": "h"}, "0.5", 101_800),
        ({"stop": None, "duration": "end"}, "-60", "stops_before_start"),
        ({"stop": None, "duration": "end"}, "long", "unreadable_duration"),
        ({"stop": None, "duration": "end"}, "NULL", "no_stop"),
        ({"stop": None, "duration": "end", "until": 200_000 * SECOND}, "NULL", 200_000),
        ({"stop": None, "duration": "end", "until": 200_000 * SECOND}, "0", 100_000),
        ({"until": 200_000 * SECOND}, " N/A ", 200_000),
        ({"until": 200_000 * SECOND}, "0", 200_000),
        ({"until": 200_000 * SECOND}, "150000", 150_000),
        ({"until": 50_000 * SECOND}, "", "stops_before_start"),
        ({}, "0", "no_stop"),
        ({"epoch": 0}, "0", "no_stop"),
        ({"epoch": 100_000 * SECOND, "until": 900_000 * SECOND}, "0", "stops_before_start"),
        ({"epoch": 100_000 * SECOND, "until": 900_000 * SECOND}, "-", 900_000),
        ({"stop": None, "state": "host", "always": None, "up": ("h",)}, "whatever", 100_000),
        ({}, "2147483647", "implausible_instant"),
        ({"until": 200_000 * SECOND}, "2147483647", 200_000),
        ({"until": 200_000 * SECOND}, "253402214400", 200_000),
        ({"until": 50_000 * SECOND}, "4102358400", "stops_before_start"),
        ({"until": 200_000 * SECOND}, str(NOW // SECOND + 86_400), NOW // SECOND + 86_400),
        ({"stop": None, "duration": "end", "until": 200_000 * SECOND}, "1800000000", "implausible_instant"),
    ],
)
def test_an_end_is_an_instant_a_length_or_still_to_come(told: dict[str, Any], last: str, found: int | str) -> None:
    row = RowReader(Mapping(**PLAIN | told), COLUMNS, NOW).read(("h", "100000", last))
    assert (row.reason if isinstance(row, Unreadable) else row.ended_at // SECOND) == found


@pytest.mark.parametrize(
    ("fields", "reason", "detail"),
    [
        (("h", "1", "2", "3"), "wrong_column_count", "4 columns instead of 3"),
        (("  ", "100000", "200000"), "no_sender", ""),
        (("h\udcff", "100000", "200000"), "not_text", "h\udcff"),
        (("h", "NULL", "200000"), "unreadable_start", "NULL"),
        (("h", "100000", ""), "no_stop", ""),
        (("h", "100000", "later"), "unreadable_stop", "later"),
        (("h", "200000", "100000"), "stops_before_start", "200000 to 100000"),
        (("h", "0", "200000"), "implausible_instant", "0 to 200000"),
        (("h", "1800000000", "1800000001"), "implausible_instant", "1800000000 to 1800000001"),
        (("h", "100000", "1795435201"), "implausible_instant", "100000 to 1795435201"),
        (("h", "nan", "200000"), "unreadable_start", "nan"),
        (("h", "1e400000000", "200000"), "unreadable_start", "1e400000000"),
        (("h", "1e999999", "200000"), "unreadable_start", "1e999999"),
        (("h", "100000", "1e31"), "unreadable_stop", "1e31"),
    ],
)
def test_a_row_that_is_no_interval_says_why(fields: tuple[str, ...], reason: str, detail: str) -> None:
    assert RowReader(Mapping(**PLAIN), COLUMNS, NOW).read(fields) == Unreadable(reason, detail)  # type: ignore[arg-type]


def test_a_key_of_several_columns_gives_groups_and_a_state_has_any_words() -> None:
    told = {"sender": ("system", "2"), "state": "what", "always": None, "up": ("OK", "warning"), "down": ("critical",)}
    mapping = Mapping(**PLAIN | told | {"shape": "{site}/{sender}", "region": "west"})
    reader = RowReader(mapping, ("System", "node", "begin", "end", "what"), NOW)
    name = SenderName("west", "18", "7", {})
    assert reader.read(("18", " 7 ", "100000", "100060", "Critical")) == ImportedSpan(
        name, "down", 100_000 * SECOND, 100_060 * SECOND
    )
    assert reader.read(("18", "7", "100060", "100060", "Warning")) == ImportedSpan(
        name, "up", 100_060 * SECOND, 100_060 * SECOND
    )
    assert reader.read(("18", "7", "1", "2", "maybe")) == Unreadable("unknown_state", "maybe")  # type: ignore[arg-type]
    assert reader.read(("18", "", "1", "2", "OK")) == Unreadable("no_sender", "18/")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"start": "begn"}, "there is no column 'begn', did you mean begin?"),
        ({"stop": "9"}, "there is no column '9'; there are host, begin, end"),
        ({"always": None}, "say which column has the state"),
        ({"gone": ("retired",)}, "--always says that every row is the same: leave --unknown and --gone out"),
        ({"unknown": ("?",)}, "--always says that every row is the same"),
        ({"up": ("x",), "down": ("X",)}, "cannot mean both up and down"),
        ({"stop": "begin"}, "the column 'begin' is both start and end"),
        ({"duration": "end"}, "say when a row ends (--stop) or how long it lasts (--duration), not both"),
        ({"stop": None}, "rows that tell changes need --state"),
        ({"zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"time": "seconds"}, "times are auto, s, ms, us, ns or a pattern"),
        ({"shape": "{}"}, "name at least one part"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, told: dict[str, Any], text: str) -> None:
    with pytest.raises(ImportRefused, match=r"^[^\n]+$") as refused:
        staged(tmp_path / "f", "host,begin,end\nh,100000,200000\n", **told)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host,begin,end\nh,100000,200000\n", {}),
        ("\ufeffhost;begin;end\r\n\r\nh;100000;200000\r\n", {}),
        ("# host begin end\n  h\t100000   200000\n# the end\n\n", {"separator": "space"}),
        ("#host\tbegin\tend\nh\t100000\t200000\n", {}),
        ("h 100000 200000\n", {"columns": ("host", "begin", "end")}),
        ("# told otherwise\nh 100000 200000\n", {"columns": ("host", "begin", "end")}),
        ('"begin","host","end"\n100000,"h",200000', {}),
        ("x y z\nh 100000 200000\n", {"sender": ("1",), "start": "2", "stop": "3"}),
        ("host|begin|end\nh|100000|200000\n", {}),
        ("host~begin~end\nh~100000~200000\n", {"separator": "~"}),
        ("Outages of May\n\nhost,begin,end\nh,100000,200000\n", {}),
        ("# Outages, all of them\n# Host Begin End\nh 100000 200000\n", {}),
        ("# two\n# lines\nh,100000,200000\n", {"columns": ("host", "begin", "end")}),
        ("host,begin,end\nh,100000,200000,,\n", {}),
        ("\thost\tbegin\tend\n0\th\t100000\t200000\n", {}),
        (" \n\nh,100000,200000\n", {"columns": ("host", "begin", "end")}),
        ("0,1,2\nh,100000,200000\n", {"sender": ("0",), "start": "1", "stop": "2"}),
        ("a\rb\nhost,begin,end\nh,100000,200000\n", {"separator": "comma"}),
        pytest.param(f"{'x' * 200_000}\nhost,begin,end\nh,100000,200000\n", {"separator": "comma"}, id="long line"),
        pytest.param(gzip.compress(b"host,begin,end\nh,100000,200000\n"), {}, id="gzip"),
        pytest.param(lzma.compress(b"host,begin,end\nh,100000,200000\n"), {}, id="xz"),
        pytest.param(bz2.compress(b"host,begin,end\nh,100000,200000\n"), {}, id="bzip2"),
    ],
)
def test_files_of_many_kinds_hold_the_same_interval(tmp_path: Path, text: str | bytes, told: dict[str, Any]) -> None:
    found = staged(tmp_path / "f", text, **told)
    assert (found.row_count, found.reasons) == (1, {})
    assert found.first == ImportedSpan(SenderName("imported", "imported", "h", {}), "down", 10**11, 2 * 10**11)


def test_what_cannot_be_read_is_counted_with_its_first_line(tmp_path: Path) -> None:
    text = b"host,begin,end\nh,100000,200000\n\xff,1,2\nh,soon,2\nh,later,2\nh,1\n"
    found = staged(tmp_path / "f", text)
    assert (found.row_count, found.quarantined_count) == (5, 4)
    assert found.reasons == {"not_text": 1, "unreadable_start": 2, "wrong_column_count": 1}
    assert found.examples["unreadable_start"] == "line 4: 'soon'"  # type: ignore[index]


def test_who_imports_a_large_file_is_told_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_PROGRESS_SECONDS", 0)
    (tmp_path / "large").write_text("host,begin,end\n" + "h,100000,200000\n" * 10_000)
    told: list[str] = []
    stage(tmp_path / "large", Mapping(**PLAIN), None, NOW, told.append)
    said = [re.fullmatch(r"large: ([\d,]+) rows \((\d+) %\)", line) for line in told]
    assert [each and each[1] for each in said] == ["4,096", "8,192"]
    # Files are read ahead.
    first, second = (int(each[2]) for each in said if each)
    assert 40 <= first < second <= 100


def test_rows_that_begin_as_remarks_do_are_rows_where_they_have_all_columns(tmp_path: Path) -> None:
    text = "# Tickets, all of them\n#4711,h,100000,200000\n#4712,h,300000,400000\n"
    found = staged(tmp_path / "f", text, columns=("ticket", *COLUMNS))
    assert (found.row_count, found.reasons) == (2, {})


def test_a_file_that_is_not_understood_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match=r"not one of 2 rows .* unreadable_start, line 2: 'soon'"):
        staged(tmp_path / "f", "host,begin,end\nh,soon,2\nh,later,2\n")
    with pytest.raises(ImportRefused, match="is empty"):
        staged(tmp_path / "f", "")
    with pytest.raises(ImportRefused, match="it has no rows"):
        staged(tmp_path / "f", "host,begin,end\n")
    for text, said in (
        (b"PK\x03\x04", "ZIP archive or a spreadsheet"),
        (b"\xff\xfeh\x00", "is UTF-16"),
        (b"PAR1", "Parquet"),
    ):
        with pytest.raises(ImportRefused, match=said):
            staged(tmp_path / "f", text)
    with pytest.raises(ImportRefused, match="No such file"):
        stage(tmp_path / "missing", Mapping(**PLAIN), None, NOW, silent)


def test_an_import_is_identified_by_what_the_file_says_and_how_it_is_read(tmp_path: Path) -> None:
    text = "host,begin,end\nh,100000,200000\n"
    plain = staged(tmp_path / "a.csv", text)
    assert staged(tmp_path / "b.csv.gz", gzip.compress(text.encode())).import_id == plain.import_id
    # It stands in tables: another one would be another import.
    assert plain.import_id == "aa130823fc26503b"
    assert staged(tmp_path / "a.csv", text, site="dub1").import_id != plain.import_id
    assert staged(tmp_path / "a.csv", text + "h,300000,400000\n").import_id != plain.import_id
    whole = gzip.compress(text.encode() * 50)
    with pytest.raises(ImportRefused, match="cannot be read after line"):
        staged(tmp_path / "cut.csv.gz", whole[:-12])
    # Past the header of gzip no block of any kind begins so.
    with pytest.raises(ImportRefused, match="cannot be read after line 0"):
        staged(tmp_path / "damaged.csv.gz", whole[:10] + b"\xff" * 20 + whole[30:])


def test_the_staging_of_a_dead_import_is_removed_and_of_a_living_one_kept(tmp_path: Path) -> None:
    dead, alive = tmp_path / "import-staging-dead", tmp_path / "import-staging-alive"
    for directory in (dead, alive):
        directory.mkdir()
        (directory / "lock").touch()
    with (alive / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with staging_area(tmp_path) as area:
            assert area.is_dir()
            assert not dead.exists()
            assert alive.exists()
    assert not area.exists()


@pytest.mark.parametrize(
    ("text", "told", "said"),
    [
        ("h 100000 200000\nh 300000 400000\n", {"sender": ("1",), "start": "2", "stop": "3"}, "--columns 1,2,3$"),
        ("1 100000 200000 1\n", {"sender": ("1",), "start": "2", "stop": "3"}, "--columns 1,2,3,4$"),
        *(
            (
                f"h,2026-11-20,{end}\ng,2026-11-20,2026-11-21\n",
                {"sender": ("1",), "start": "2", "stop": "3", "time": "auto"},
                "first line is a row, .*--columns 1,2,3$",
            )
            for end in ("2038-01-19", "2099-12-31", "-", "2026-11-19", "later")
        ),
        (
            "h,2026-11-20,2026-11-21,ok\nh,2026-11-21,2026-11-22,down\n",
            {"sender": ("1",), "start": "2", "stop": "3", "state": "4", "always": None, "time": "auto"},
            "--columns 1,2,3,4$",
        ),
        ("host,begin,end\nh,1700000000,3600\n", {}, "line 2: '1700000000 to 3600' .*: --duration"),
        ("host,begin,end\nh,2023-11-14,3600\n", {"time": "auto"}, "line 2: '3600' .*: --duration"),
        ("host,begin,end\nh,20231114,20231115\n", {"time": "auto"}, "line 2: '20231114' .*--time; .*--epoch"),
        ("host,begin,end,is\nh,1,2,OK\n", {"always": None, "state": "is"}, "line 2: 'OK' .* --up, --down, --unknown"),
        ("host,begin,end\nh,14/11/2023,x\n", {}, "line 2: '14/11/2023' .how times are written: --time"),
        ("host,begin,end\nh,1700000000000,1700000001000\n", {}, "in which unit times are: --time ms"),
        ("host,begin,end\nh,2023-11-14,2099-12-31\n", {"time": "auto"}, "when a row ends that goes on: --until"),
    ],
)
def test_a_file_that_was_not_understood_says_which_option_was_meant(
    tmp_path: Path, text: str, told: dict[str, Any], said: str
) -> None:
    with pytest.raises(ImportRefused, match=said):
        staged(tmp_path / "file", text, **told)
