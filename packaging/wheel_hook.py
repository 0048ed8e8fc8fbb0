"""Note in the wheel which commit it was built from: ``--version`` says it."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Write shared/built_from; not where nobody knows, nor where the sources are used as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Ask Git, before the files are gathered."""
        command = ["git", "-C", self.root, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
        try:
            # All of it stands here.
            commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
        except (OSError, subprocess.CalledProcessError):
            return
        if version != "editable":
            path = Path(self.directory) / "built_from"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit)
            build_data["force_include"][str(path)] = "shared/built_from"
