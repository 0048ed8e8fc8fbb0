"""Set the clock of one process, such as a real nats-server, and nobody else's: its vDSO tells it another time.

A program asks the vDSO, a page of code that the kernel maps into it (vdso(7)), for the time. Whoever may trace the
process may write there, and what is written is that process's alone. The code put in the place of ``clock_gettime``
asks the kernel and adds an offset to what it says of CLOCK_REALTIME; the monotonic clock goes on, as it does where an
operator sets a host's clock.
"""

import os
import platform
import struct
import subprocess
from pathlib import Path
from typing import Self

from shared.embedded.server import EmbeddedNats
from shared.instants import SECOND

_DYNAMIC_SYMBOLS = 11
_OFFSET_AT = 24
_CODE = bytes.fromhex(
    "b8e4000000"  # mov eax, 228 (clock_gettime)
    "0f05"  # syscall
    "85ff"  # test edi, edi (CLOCK_REALTIME is 0)
    "750a"  # jne ret
    "488b0d06000000"  # mov rcx, [offset, in whole seconds]
    "48010e"  # add [rsi], rcx
    "c3"  # ret
).ljust(_OFFSET_AT, b"\x90")


class SteppedClock:
    """The clock of a running server. One that is started anew has the machine's clock, and wants another of these."""

    def __init__(self, server: EmbeddedNats) -> None:
        # No thread may be in the midst of what is replaced.
        server.suspend()
        try:
            self._memory, self._place = _replaced(server.pid)
        finally:
            server.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._memory)

    def set(self, ahead: int) -> None:
        """Let it be ``ahead`` of the machine's (behind: negative), in microseconds that make whole seconds."""
        seconds, rest = divmod(ahead, SECOND)
        assert not rest, "a clock is set by whole seconds"
        os.pwrite(self._memory, struct.pack("<q", seconds), self._place + _OFFSET_AT)


def _replaced(pid: int) -> tuple[int, int]:
    """Replace a process's ``clock_gettime``; give a descriptor of its memory, and where the code lies in it."""
    begin, end = _vdso(pid)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        place = begin + _symbol(os.pread(memory, end - begin, begin), b"__vdso_clock_gettime")
        os.pwrite(memory, _CODE + bytes(8), place)
    except BaseException:
        os.close(memory)
        raise
    return memory, place


def _vdso(pid: int) -> tuple[int, int]:
    mappings = Path(f"/proc/{pid}/maps").read_text(encoding="ascii").splitlines()
    (mapping,) = [line.split()[0] for line in mappings if line.endswith("[vdso]")]
    begin, _, end = mapping.partition("-")
    return int(begin, 16), int(end, 16)


def _symbol(image: bytes, wanted: bytes) -> int:
    """Find where a symbol of a shared object lies in its image (elf(5))."""
    (sections_at,), (size, count) = struct.unpack_from("<Q", image, 0x28), struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, sections_at + number * size) for number in range(count)]
    (symbols,) = [section for section in sections if section[1] == _DYNAMIC_SYMBOLS]
    names_at = sections[symbols[6]][4]
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
        if image.startswith(wanted + b"\0", names_at + name):
            return int(value)
    raise LookupError(f"the vDSO has no {wanted.decode()}")


def _why_not() -> str:
    """Say why no process's clock can be set here, by trying it on one; nothing where it can."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "the code that replaces clock_gettime is x86-64's"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        # Popen returns before a program has all its memory, the vDSO included; one that answers does.
        child.stdin.write(b".")
        child.stdout.read(1)
        try:
            os.close(_replaced(child.pid)[0])
        except (OSError, ValueError, LookupError) as error:
            return f"a process's vDSO cannot be written to here: {error}"
        finally:
            child.kill()
    return ""


CANNOT_STEP = _why_not()
