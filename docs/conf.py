"""Build the manual and the man pages: ``make docs``. Nothing here needs a network."""

from importlib.metadata import version as installed_version

project = "Muster"
author = "the authors of Muster"
copyright = author  # noqa: A001 - Sphinx reads this name
version = release = installed_version("muster")

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["by-hand"]
# A link to a heading is checked like a link to a page.
myst_heading_anchors = 4
highlight_language = "none"

# Options are written `--config`, not with a dash.
smartquotes = False

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sphinx = False

_PROGRAMS = {
    "muster-agent": "watch a site's registrations, forward a sample, say who is silent",
    "muster-aggregator": "lay out the streams, keep the availability tables",
}
man_pages = [(f"reference/{name}", name, title, "", 1) for name, title in _PROGRAMS.items()]
man_make_section_directory = True
