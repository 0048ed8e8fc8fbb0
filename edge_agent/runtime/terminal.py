"""Tell how wide a line may be where it is read: as wide as a terminal is; in a pipe or a file lines stay whole."""

import shutil
import sys

UNWRAPPED = 100_000


def width() -> int:
    """Give the columns that standard output has; many where that is no terminal, so that grep finds whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNWRAPPED
