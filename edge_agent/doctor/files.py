"""Check of the agent's files: settings and secrets, their readers, the store's directory, the disk."""

import os
import pwd
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.finding import Finding, Level, bad, good, warning
from edge_agent.inspection.blocks import read_blocks
from edge_agent.observability.conditions import CERTIFICATE_EXPIRES, DISK_FAILING, DISK_FULL, NOT_RUNNING
from edge_agent.observability.status_board import now
from edge_agent.runtime.process import open_to_others
from edge_agent.store.files import (
    DIRECTORY_REMEDY,
    LINK_REMEDY,
    StoreUnusable,
    links_of,
    read_through,
    set_aside_before,
)
from edge_agent.store.housekeeping import has_room
from edge_agent.store.read_only import StoreUnreadable, holds_less, store_reader
from edge_agent.store.site_key import KeyDamaged, read_key
from shared.nats.causes import MEND_FILE
from shared.nats.expiry import own_expiries
from shared.nats.secrets import UnusableSecret, login, tls_context
from shared.nats.settings import ConnectionSettings
from shared.sizes import format_size
from shared.system_errors import reason_of


def check_files(config_path: Path, settings: AgentSettings) -> Iterator[Finding]:
    """Look at every file that the settings name."""
    yield from _as_root(config_path, Path(settings.store.path).parent)
    yield _settings_file(config_path, settings)
    yield from (warning("settings", *block.remark) for block in settings.stream if any(block.remark))
    yield from _secrets(settings)
    path = Path(settings.store.path)
    try:
        above = next(each for each in path.parents if each.exists())
        if not above.is_dir():
            yield bad("store", f"{above} is no directory", "name another place in store.path")
            return
        yield from _directory(path)
        yield from _leftovers(path)
        yield from _contradictions(path, settings)
        yield from _legibility(path)
        yield from _disk(path, int(settings.store.max_outbox))
    except OSError as error:
        remedy = "let the agent's user into its directory, and run the doctor as that user"
        if not isinstance(error, PermissionError):
            remedy = "mend the disk or what lies there, or name another place in store.path"
        yield bad("store", f"{path}: {reason_of(error, path)}", remedy)


def _as_root(config_path: Path, directory: Path) -> Iterator[Finding]:
    """Warn that root, which may read everything, cannot check the agent's permissions."""
    if os.geteuid() != 0:
        return
    owner = directory.stat().st_uid if directory.exists() else None
    if owner == 0:
        return
    who = "USER" if owner is None else _name_of(owner)
    remedy = f"run it as the agent's user: sudo -u {who} {shlex.quote(sys.argv[0])} doctor --config {config_path}"
    yield warning("user", "root may read and write every file: whether the agent may is not told below", remedy)


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"'#{user}'"


def _settings_file(path: Path, settings: AgentSettings) -> Finding:
    if path.stat().st_mode & stat.S_IWOTH:
        return warning("settings", f"{path} can be changed by everyone on this host", f"chmod o-w {path}")
    streams = ", ".join(block.name for block in settings.stream)
    return good("settings", f"{path}: site {settings.site}, region {settings.region}, stream {streams}")


def _connections(settings: AgentSettings) -> dict[str, ConnectionSettings]:
    sources = {f"stream {block.name}: source": block.source for block in settings.stream}
    return {"upstream": settings.upstream, **sources}


def secret_paths(settings: AgentSettings) -> dict[str, Path]:
    """Name every file that only the agent should be able to read, by its key in the settings."""
    named = {}
    for name, connection in _connections(settings).items():
        auth, tls = connection.auth, connection.tls
        for key in ("nkey_seed_file", "credentials_file", "password_file", "token_file"):
            if getattr(auth, key):
                named[f"{name}.auth.{key}"] = Path(getattr(auth, key))
        if tls is not None and tls.key:
            named[f"{name}.tls.key"] = Path(tls.key)
    return {**named, "upstream.id_key_file": settings.id_key_path}


def _secrets(settings: AgentSettings) -> Iterator[Finding]:
    paths = secret_paths(settings)
    if not os.access(settings.id_key_path, os.F_OK):
        # The agent makes it at its first start; a directory that cannot be searched is reported with the store.
        del paths["upstream.id_key_file"]
    keys: dict[Path, list[str]] = {}
    for key, path in paths.items():
        keys.setdefault(path, []).append(key)
    findings = [each for path, named in keys.items() if (each := _secret(f"{' and '.join(named)} {path}", path))]
    findings += _of_no_use(settings, [each.text for each in findings if each.level is Level.FAIL])
    findings += _damaged_key(settings)
    findings += _certificates(settings)
    yield from findings
    if paths and not findings:
        yield good("secrets", f"{', '.join(map(str, keys))}: readable, and not by everyone")


def _of_no_use(settings: AgentSettings, said: Sequence[str]) -> Iterator[Finding]:
    """Check the content of credentials and certificates, once each, for reasons why a login with them fails."""
    causes: dict[str, list[str]] = {}
    for name, connection in _connections(settings).items():
        try:
            login(connection.auth).check()
            if connection.tls is not None:
                tls_context(connection.tls)
        except UnusableSecret as error:
            causes.setdefault(str(error), []).append(name)
    for cause, names in causes.items():
        # The file is named after its key, and a missing one is reported above.
        if not any(cause.partition(": ")[0] in text for text in said):
            yield bad("secrets", f"{' and '.join(names)}: {cause}", MEND_FILE)


def _certificates(settings: AgentSettings) -> Iterator[Finding]:
    """Report certificates, authorities and JWTs of the settings that expire soon, each once with all its users."""
    expiring: dict[str, list[str]] = {}
    for name, connection in _connections(settings).items():
        for said in own_expiries(connection, now()):
            expiring.setdefault(said, []).append(name)
    for said, names in expiring.items():
        level = bad if "has expired" in said else warning
        text = f"{' and '.join(names)}: {said}"
        yield level("secrets", text, CERTIFICATE_EXPIRES.remedy, CERTIFICATE_EXPIRES)


def _damaged_key(settings: AgentSettings) -> Iterator[Finding]:
    try:
        read_key(settings.id_key_path, is_default_path=not settings.upstream.id_key_file)
    except KeyDamaged as damage:
        if damage.is_ours:
            remedy = "put it back from a backup; else the agent sets it aside when it starts, and makes a new one"
            yield warning("secrets", str(damage), remedy)
        else:
            yield bad("secrets", str(damage), "correct upstream.id_key_file, or put the key back from a backup")
    except (OSError, StoreUnusable):
        # Told of with the others, or made at the first start.
        return


def _secret(name: str, path: Path) -> Finding | None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return bad("secrets", f"{name}: there is no such file", "put the secret there, or correct the path")
    except OSError as error:
        return bad("secrets", f"{name}: {error.strerror}", "let the agent's user into the directory")
    if not os.access(path, os.R_OK):
        return bad("secrets", f"{name}: cannot be read", "give the file to the agent's user (chown, chmod 600)")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return warning("secrets", f"{name} is open to everyone on this host", f"chmod 600 {path}, and renew the secret")
    return None


def _directory(path: Path) -> Iterator[Finding]:
    directory = path.parent
    if not directory.exists():
        yield bad("store", f"{directory} does not exist", DIRECTORY_REMEDY)
        return
    files = [directory, *(each for each in directory.glob(f"{path.name}*") if each.is_file())]
    closed = [each for each in files if not os.access(each, os.W_OK)]
    if links := links_of(path):
        yield bad("store", "; ".join(links), LINK_REMEDY)
    elif closed:
        names = ", ".join(str(each) for each in closed)
        yield bad("store", f"{names}: cannot be written", "give directory and files to the agent's user (chown)")
    elif opened := [str(each) for each in open_to_others(path)]:
        remedy = "start the agent anew, which closes them; or chmod o-rwx. They hold what senders register"
        yield warning("store", f"{', '.join(opened)}: open to everyone on this host", remedy)
    elif not path.exists() and path.with_name(path.name + ".marker").exists():
        remedy = "put it back if you can; else the agent begins anew, and known senders are announced again"
        yield warning("store", f"{path} is gone, though there was one", remedy)
    else:
        held = f"{path}, {format_size(path.stat().st_size)}" if path.exists() else f"{path} will be made"
        yield good("store", held)


def _leftovers(path: Path) -> Iterator[Finding]:
    if holds_less(path):
        remedy = "put back its -wal, or the store itself; else it is set aside, and known senders are announced again"
        yield warning("store", f"{path} holds less than had been committed to it", remedy)
    aside = [str(each) for each in set_aside_before(path)]
    if aside:
        remedy = "look after the disk; delete them when nobody wants to look into them"
        yield warning("store", f"set aside as corrupt: {', '.join(aside)}", remedy)


def _contradictions(path: Path, settings: AgentSettings) -> Iterator[Finding]:
    """Return the finding that the agent refuses to run with these settings on this store."""
    try:
        with store_reader(path) as database:
            known = list(read_blocks(database).values())
    except StoreUnreadable:
        # Told of with the agent.
        return
    for said in filter(None, (settings.contradiction(each.block_id, each.state) for each in known)):
        what, _, remedy = said.rpartition(": ")
        yield bad("store", what, remedy, NOT_RUNNING)


def _legibility(path: Path) -> Iterator[Finding]:
    try:
        read_through(path)
    except PermissionError:
        # Their required owner is reported above.
        return
    except OSError as error:
        remedy = "the disk fails: look at the kernel's log, replace it; the agent leaves such a store as it is"
        yield bad("disk", f"{path} cannot be read: {reason_of(error, path)}", remedy, DISK_FAILING)


def _disk(path: Path, max_outbox: int) -> Iterator[Finding]:
    directory = next(parent for parent in path.parents if parent.exists())
    free = shutil.disk_usage(directory).free
    used = sum(each.stat().st_size for each in directory.glob(f"{path.name}*") if each.is_file())
    text = f"{format_size(free)} free at {directory}"
    if not has_room(directory, _free_pages(path)):
        remedy = "make room: the agent pauses while it cannot write, and goes on by itself"
        yield bad("disk", text, remedy, DISK_FULL)
    elif free + used < max_outbox:
        remedy = "make room, or lower store.max_outbox, so that a long outage ends in counted drops, not in a full disk"
        yield warning("disk", f"{text}, store.max_outbox is {format_size(max_outbox)}", remedy)
    else:
        yield good("disk", f"{text}, enough for store.max_outbox ({format_size(max_outbox)})")


def _free_pages(path: Path) -> int:
    """Return the store's blocks; none if it cannot be read, which is reported with the agent."""
    with suppress(StoreUnreadable), store_reader(path) as database:
        return int(database.execute("PRAGMA freelist_count").fetchone()[0])
    return 0
