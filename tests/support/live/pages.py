"""Open the live page in a real browser, and hold everything that it complains of against it."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.browser import find_browser
from tests.support.lakehouse.hub import Hub, Message

DEADLINE = 180_000
"""Milliseconds, on a machine with much else to do."""


@contextmanager
def browser() -> Iterator[Browser]:
    """Start it; skip the test where none is installed."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed here (Debian: chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


class HubBesideBrowser(Hub):
    """A hub that is spoken to from a thread of its own: in the test's the browser's event loop runs.

    It is the same thread all the time, since its server ends with the thread that started it.
    """

    def start(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(super().start).result()

    def stop(self) -> None:
        self._thread.submit(super().stop).result()
        self._thread.shutdown()

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        if current_thread() is main_thread():
            return self._thread.submit(super().request, subject, body).result()
        return super().request(subject, body)

    def publish(self, messages: Iterable[Message]) -> int:
        return self._thread.submit(super().publish, messages).result()


class Reader:
    """A browser's profile with its pages; ``complaints`` is what they wrote to the console, or threw."""

    def __init__(self, started: Browser, port: int, **options: Any) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.context = started.new_context(**{"timezone_id": "Europe/Berlin", "locale": "en-GB"} | options)
        self.context.set_default_timeout(DEADLINE)
        self.complaints: list[str] = []

    def open(self, address: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.goto(self.root + address)
        return page
