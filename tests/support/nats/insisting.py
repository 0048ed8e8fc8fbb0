"""Requests to a cluster that may still be electing leaders."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client

from shared.nats.jetstream_api import ApiError, RequestFailed, request_json

DEADLINE = 90.0
_REQUEST_DEADLINE = 20.0
_PAUSE = 1.0


async def insist(client: Client, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat an idempotent request, such as for a stream or a consumer, until it is granted.

    A cluster that elects leaders, or has just received an account, refuses for a moment or does not answer. Raise the
    last ApiError or RequestFailed after ``DEADLINE``.
    """
    ends_at = time.monotonic() + DEADLINE
    while True:
        try:
            return await request_json(client, subject, body, dict[str, Any], deadline=_REQUEST_DEADLINE)
        except (ApiError, RequestFailed):
            if time.monotonic() > ends_at:
                raise
            await asyncio.sleep(_PAUSE)
