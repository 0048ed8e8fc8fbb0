"""Write HTML that cannot be broken by what the tables hold: every text is escaped unless it is Html already.

So are the marks that would turn a text around, or hide in it: names come from anybody.
"""

from html import escape

from shared.command_line.tables import visible


class Html(str):
    """Text that is markup: made by ``element`` and ``join`` alone, or out of a file of ours."""

    __slots__ = ()


Child = str | int | None
"""What stands inside an element. None is nothing; a plain str is text and is escaped."""

_VOID = {"br", "hr", "meta"}


def join(*children: Child) -> Html:
    r"""Put children one after another.

    >>> join("a < b ", element("b", "c"), "\u202egnp.exe")
    'a &lt; b <b>c</b>\\u202egnp.exe'
    """
    return Html("".join(_markup(child) for child in children))


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Make an element. ``class_`` is ``class``; a dash in an attribute is written ``_``; None and False leave it out.

    >>> element("td", "<1", class_="figure", data_value=0.5, hidden=True)
    '<td class="figure" data-value="0.5" hidden>&lt;1</td>'
    """
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    content = join(*children)
    return Html(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{content}</{name}>")


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _markup(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Html) else _text(child)


def _text(value: object) -> str:
    return escape(visible(str(value)))
