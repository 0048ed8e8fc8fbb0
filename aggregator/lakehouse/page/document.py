"""Put the page together: one HTML file that needs nothing else, the same for the same tables.

``page.html`` holds its sections, ``summary.html`` the sentences above them, ``macros.html`` the tables that all share.
"""

import re
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from aggregator.lakehouse.page import words
from aggregator.lakehouse.page.figures import PageFigures
from aggregator.lakehouse.page.fleet_curve import fleet_plots, fleet_points
from aggregator.lakehouse.page.heat_map import HeatMap
from aggregator.lakehouse.page.outages import Outages
from shared.command_line.tables import visible

_LAYOUT: Final = re.compile(r"(?<=[>}])\n\s*|\n\s*(?=[<{])")
_WRAP: Final = re.compile(r"\n\s*")


def render(figures: PageFigures) -> str:
    clock = words.Clock(figures.period)
    page = TEMPLATES.get_template("page.html").render(
        figures=figures,
        period=figures.period,
        clock=clock,
        map=HeatMap(figures, clock),
        points=fleet_points(figures),
        plots=fleet_plots(figures, clock),
        outages=Outages(figures),
        version=version("muster"),
    )
    return f"<!doctype html>\n{page}\n"


def _source(name: str) -> str:
    """Read a template; a line break next to a tag or a brace is layout, any other one is a blank."""
    source = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return _WRAP.sub(" ", _LAYOUT.sub("", source)) if name.endswith(".html") else source


def _text(value: object) -> Markup:
    """Escape text, and marks that would turn it around or hide in it: names are not trusted."""
    if value is None:
        return Markup()
    return value if isinstance(value, Markup) else Markup(escape(visible(str(value))))  # noqa: S704 - escaped here


TEMPLATES: Final = Environment(
    loader=FunctionLoader(_source),
    autoescape=True,
    finalize=_text,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
TEMPLATES.globals.update(
    {name: getattr(words, name) for name in ("NOTHING", "count", "duration", "figure", "listed", "percent", "rest")},
    step_name=words.step_name,
    causes=words.CAUSES,
)
