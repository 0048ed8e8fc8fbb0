"""Say what a running server needs, to take up a configuration that was rendered anew. Pure.

A reload makes the imports of an account that it has not known before only the second time, and leaves open leaf links
in the account in which they were opened (nats-server 2.15.1).
"""

import re

_ACCOUNT = re.compile(r"^  (\S+) \{$")
_KEY = re.compile(r"^      # (\S+)$")


def reload_step(server: str, before: str, after: str) -> str:
    """Say it in one line, "" where there is nothing to do, and for a configuration that is the first one."""
    if before in ("", after):
        return ""
    were, are = _accounts(before), _accounts(after)
    links = ((account, key) for account, keys in are.items() for key in keys if key.endswith("-leaf"))
    moved = [key for account, key in links if key in _elsewhere(were, account)]
    new = [account for account in are if account not in were]
    if moved:
        return f"{server}: restart it, {', '.join(moved)} has another account, and open links keep theirs over a reload"
    if new:
        return f"{server}: reload it twice, {', '.join(new)} works from the second time on"
    return f"{server}: reload it"


def _elsewhere(accounts: dict[str, list[str]], name: str) -> set[str]:
    return {key for account, keys in accounts.items() if account != name for key in keys}


def _accounts(config: str) -> dict[str, list[str]]:
    """Read which accounts a configuration has, and the names of the keys in each."""
    found: dict[str, list[str]] = {}
    _, _, rest = config.partition("\naccounts {\n")
    account = ""
    for line in rest.splitlines():
        if line == "}":
            break
        if named := _ACCOUNT.match(line):
            account = named[1]
            found[account] = []
        elif key := _KEY.match(line):
            found[account].append(key[1])
    return found
