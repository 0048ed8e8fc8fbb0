"""Every picture of the page has its table, and tells its states apart without any colour."""

import re
from collections import Counter, defaultdict
from xml.etree import ElementTree as ET

import pytest

from aggregator.lakehouse.page import heat_map
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import Cell, PageFigures, SenderTimes
from aggregator.lakehouse.page.fleet_curve import fleet_points
from aggregator.lakehouse.page.words import duration
from shared.instants import DAY, format_instant
from tests.support.lakehouse.histories import month
from tests.support.lakehouse.shown_history import Shown

PICTURES = (".//figure", ".//table[@class='heat']", ".//dl[@aria-hidden]", ".//svg[@class='course']")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> PageFigures:
    return Shown(tmp_path_factory.mktemp("pictures"), month(senders_per_site=10)).figures()


@pytest.fixture(scope="module")
def page(figures: PageFigures) -> str:
    return render(figures)


def tree(page: str) -> ET.Element:
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    return ET.fromstring(re.sub(r" (open|hidden)(?=[ >])", r' \1=""', body))  # noqa: S314 - our own page


def enclosing(root: ET.Element, picture: ET.Element) -> ET.Element:
    """Give the section, or the folded part of one, that a picture stands in."""
    parents = {child: parent for parent in root.iter() for child in parent}
    at = parents[picture]
    while at.tag not in ("section", "details"):
        at = parents[at]
    return at


def tables_behind(place: ET.Element) -> list[ET.Element]:
    """Give the folded tables directly in ``place`` that say that they are what is behind its pictures."""
    folded = [child for child in place if child.tag == "details" and "The table behind" in text_of(child[0])]
    return [table for child in folded for table in child.iter("table")]


def text_of(element: ET.Element) -> str:
    return "".join(element.itertext())


def rows_of(table: ET.Element) -> list[list[str]]:
    """Give the cells of a table's rows, an instant as exactly as the page has it."""
    return [
        [next((time.attrib["datetime"] for time in cell.iter("time")), text_of(cell)) for cell in row]
        for row in table[1]
    ]


def without_a_table(page: str) -> list[str]:
    root = tree(page)
    bare = []
    for kind in PICTURES:
        pictures = root.findall(kind)
        assert pictures, f"no {kind} on this page"
        for picture in pictures:
            place = enclosing(root, picture)
            # The course of an incident stands right above its turning points and its senders.
            tables = place.findall("./div/table") if picture.tag == "svg" else tables_behind(place)
            if not any(table[1].findall("tr") for table in tables):
                bare.append(kind)
    return bare


def of_many_sites(figures: PageFigures, count: int) -> PageFigures:
    """Give so many sites, each with what the first one did, but for the last: there nothing happened."""
    first = figures.groups[0]
    cells = [cell for cell in figures.cells if (cell.place, cell.name) == (first.place, first.name)]
    names = [f"site{number}" for number in range(count)]
    well = SenderTimes(DAY)
    return figures._replace(
        groups=[*(first._replace(name=name) for name in names), first._replace(name="well", times=well)],
        cells=[
            *(cell._replace(name=name) for name in names for cell in cells),
            *(cell._replace(name="well", times=well) for cell in cells),
        ],
    )


def parts_behind_the_map(page: str) -> tuple[str, dict[str, list[list[str]]]]:
    """Give what is said above the tables of a large map's groups, and the rows of each."""
    (behind,) = [
        part for part in tree(page).iter("details") if text_of(part[0]).startswith("The table behind this map, a part")
    ]
    return text_of(behind[1]), {
        text_of(part[0]): rows_of(next(part.iter("table"))) for part in behind.findall("details")
    }


def as_shown(cell: Cell) -> tuple[str, str, str]:
    return format_instant(cell.started_at), duration(cell.times.up), duration(cell.times.down)


def test_behind_every_picture_stands_its_table(page: str, figures: PageFigures) -> None:
    assert figures.heat.step == DAY
    assert without_a_table(page) == []


def test_behind_the_map_of_a_large_fleet_stands_every_cell_in_which_something_happened(figures: PageFigures) -> None:
    large = of_many_sites(figures, 5_000 // (figures.period.length // DAY))
    page = render(large)
    assert without_a_table(page) == []
    said, shown = parts_behind_the_map(page)
    assert said == "What is left out: where all were up, and watched, all the time."
    assert list(shown) == [group.name for group in large.groups if group.name != "well"]
    found = Counter((name, row[0], row[3], row[4]) for name, rows in shown.items() for row in rows)
    eventful = [cell for cell in large.cells if cell.times.up < cell.times.lived or cell.times.maintenance]
    assert found == Counter((cell.name, *as_shown(cell)) for cell in eventful)
    assert len(eventful) < len(large.cells) - 100


def test_where_too_much_happened_for_a_page_the_table_has_the_worst_and_names_the_others(
    figures: PageFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, worst = of_many_sites(figures, 20), "site19"
    each = sum(cell.times.up < cell.times.lived for cell in large.cells if cell.name == worst)
    monkeypatch.setattr(heat_map, "_MOST_ROWS", len(large.cells) - 1)
    monkeypatch.setattr(heat_map, "_MOST_EVENTFUL_ROWS", 5 * each + 1)
    groups = [
        group._replace(times=group.times.plus(SenderTimes(0, DAY))) if group.name == worst else group
        for group in large.groups
    ]
    said, shown = parts_behind_the_map(render(large._replace(groups=groups)))
    assert {name: len(rows) for name, rows in shown.items()} == dict.fromkeys(
        ("site0", "site1", "site10", "site11", worst), each
    )
    assert "Too much for one page: site12, " in said
    # Where nothing happened there is nothing to leave out.
    assert " and 7 more. A shorter period" in said


def test_behind_each_day_by_the_hour_stands_every_hour_with_anything_but_up(page: str, figures: PageFigures) -> None:
    root = tree(page)
    found = Counter(
        (text_of(part[0][0]), row[0], row[3], row[4])
        for part in root.iter("details")
        if "hour by hour" in text_of(part[0])
        for table in tables_behind(part)
        for row in rows_of(table)
    )
    eventful = [cell for cell in figures.hours if cell.times.up < cell.times.lived]
    assert found == Counter((cell.name, *as_shown(cell)) for cell in eventful)
    assert len(eventful) > 20


def test_behind_the_strips_of_incidents_stand_their_sizes(page: str) -> None:
    (section,) = [each for each in tree(page).iter("section") if each.get("id") == "outages"]
    (table,) = tables_behind(section)
    rows = rows_of(table)
    assert len(rows) > 2
    assert {(row[0], row[4], row[5]) for row in rows} == {("ams1", "10", "100 %")}


def heights_of_band(page: str, name: str, count: int) -> list[float]:
    """Give the height of each step of a band of the curve, in thousandths of the picture."""
    found = re.search(rf'<clipPath id="{name}"[^>]*><path d="M0 ([\d.]+)([^"]*)Z"', page)
    assert found is not None
    steps = [float(height) for height in re.findall(r"V([\d.]+)", found[2])]
    above, below = steps[:count], steps[count:][::-1]
    return [low - high for high, low in zip(above, below, strict=True)]


def test_what_nobody_watched_is_a_band_of_its_own_as_high_as_its_senders_are_many(
    page: str, figures: PageFigures
) -> None:
    points = fleet_points(figures)
    (curve,) = [each for each in tree(page).iter("figure") if text_of(each[0]) == "All senders"]
    # The highest label of the axis is the top of the picture.
    top = float(text_of(curve[1][-1]).replace(",", ""))
    heights = heights_of_band(page, "fleet-unknown", len(points))
    assert heights == pytest.approx([point.unknown * 1000 / top for point in points], abs=0.2)
    assert any(height > 100 for height in heights)
    (band,) = [rect for rect in curve.iter("rect") if rect.get("clip-path") == "url(#fleet-unknown)"]
    assert band.get("class") == "band-unknown"


def rules(css: str) -> dict[str, str]:
    """Give all that is said of each selector."""
    found: dict[str, str] = defaultdict(str)
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", css):
        for selector in selectors.split(","):
            found[selector.strip()] += body
    return found


def luminance(colour: str) -> float:
    """Give how light a colour is, from 0 to 1 (WCAG 2.2, relative luminance): what is left of it in black and white."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Give WCAG's ratio of contrast, of which 3 is enough for pictures."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_without_colours_unknown_is_hatched_and_nothing_that_is_known_is(page: str) -> None:
    css = page[page.index("<style>") : page.index("</style>")]
    drawn = rules(css)
    assert drawn["rect.band-unknown"].split() == ["fill:", "url(#hatch);"]
    for hatched in (".unwatched", ".swatch.band-unknown", ".strips dd i", ".heat td i"):
        assert "repeating-linear-gradient(135deg, var(--hatch)" in drawn[hatched]
    for known in (".band-up", ".band-down", *(f".s{number}" for number in range(7))):
        assert not re.search(r"gradient|url", drawn[known])
    pattern = page[page.index('id="hatch"') :]
    assert re.search(r'<rect width="8" height="8" class="ground"></rect><path d="[^"]+" class="stripe">', pattern)


def test_without_colours_down_is_told_from_up_and_the_worse_the_stronger(page: str) -> None:
    css = page[page.index("<style>") : page.index("</style>")]
    palettes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", body)) for body in re.findall(r":root \{([^}]*)\}", css)
    ]
    assert len(palettes) == 3, "by day, by night, on paper"
    for palette in palettes:
        assert contrast(palette["up"], palette["down"]) >= 3
        shades = [luminance(palette[f"s{number}"]) for number in range(7)]
        # On paper and by day worse is darker, by night it is lighter.
        assert shades in (sorted(shades), sorted(shades, reverse=True))
        assert len(set(shades)) == 7
        assert contrast(palette["s0"], palette["s6"]) >= 7
