"""Draw who lends what to whom among accounts, and what leaf nodes join, as text for GraphViz (``dot -Tsvg``). Pure."""

from collections.abc import Iterable, Iterator, Sequence

from aggregator.scenarios.edge_tokens import Account


def account_graph(accounts: Sequence[Account], hub: str, spokes: Iterable[str], joined: Iterable[str]) -> str:
    """Write an arrow from each account to those that take something of it, and one for each spoke's leaf nodes."""
    names = {account.key.public: account.name for account in accounts}
    lines = [
        "digraph accounts {",
        "  rankdir=LR;",
        "  nodesep=0.6;",
        '  node [fontname="sans-serif"];',
        '  edge [fontsize="10"];',
    ]
    lines += [f"  {_quoted(account.name)} [shape=box, label={_label(account)}];" for account in accounts]
    for account in accounts:
        for lender in dict.fromkeys(each["account"] for each in account.imports):
            taken = list(_taken(account, lender))
            lines.append(f"  {_quoted(names[lender])} -> {_quoted(account.name)} [label={_quoted(*taken)}];")
    lines += [f"  {_quoted(place)} [shape=ellipse];" for place in (hub, *spokes)]
    links = _quoted("leaf nodes join", *joined)
    lines += [f"  {_quoted(spoke)} -> {_quoted(hub)} [dir=both, style=dashed, label={links}];" for spoke in spokes]
    return "\n".join([*lines, "}", ""])


def _label(account: Account) -> str:
    lent = [f"{each['type']} {each['subject']}" for each in account.exports]
    return _quoted(account.name, "JetStream" if account.has_jetstream else "no JetStream", *lent)


def _taken(account: Account, lender: str) -> Iterator[str]:
    for each in account.imports:
        if each["account"] == lender:
            own = each.get("local_subject", "")
            yield f"{each['type']} {each['subject']}" + (f" as {own}" if own else "")


def _quoted(*lines: str) -> str:
    """Quote as GraphViz does; lines are joined by its own line break."""
    return '"' + r"\n".join(line.replace("\\", r"\\").replace('"', r"\"") for line in lines) + '"'
