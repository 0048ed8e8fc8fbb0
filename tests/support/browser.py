"""Look at a page with a real browser, without a window and without a network."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
)
_ANSWER = re.compile(r'<pre id="seen">(.*?)</pre>', re.DOTALL)


class Seen(NamedTuple):
    """What a script found on the page, and what the browser complained of."""

    answer: dict[str, Any]
    complaints: list[str]


class Browser:
    """A browser with a profile of its own in ``directory``."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program, self._directory = program, directory

    def look_at(self, page: str, width: int, script: str) -> Seen:
        """Load the page at a width in pixels, and run the body of a function on it that returns an object."""
        probe = f"<script>addEventListener('load', () => parent.postMessage((() => {{{script}}})(), '*'))</script>"
        (self._directory / "page.html").write_text(page.replace("</body>", probe + "</body>"), encoding="utf-8")
        # In a frame, since a window may not be as narrow as a phone.
        file = self._directory / "frame.html"
        file.write_text(
            "<!doctype html><pre id='seen'></pre><script>addEventListener('message', (event) => {"
            " document.querySelector('#seen').textContent = JSON.stringify(event.data); });</script>"
            f"<iframe src='page.html' style='border: 0; width: {width}px; height: 1500px'></iframe>"
        )
        profile = f"--user-data-dir={self._directory / 'profile'}"
        command = [self._program, *_FLAGS, profile, "--window-size=1400,1600", "--dump-dom", file.as_uri()]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        found = _ANSWER.search(ran.stdout)
        assert found is not None, ran.stderr
        complaints = [line for line in ran.stderr.splitlines() if ":CONSOLE" in line]
        return Seen(json.loads(html.unescape(found[1])), complaints)


def find_browser() -> str | None:
    """Find a Chromium on this machine."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
