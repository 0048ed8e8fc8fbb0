"""A nats-server before 2.14: the one that MUSTER_OLDER_NATS names, else the one that ``make`` fetched."""

import os
from pathlib import Path

import pytest

_FETCHED = Path(__file__).parents[3] / ".cache" / "older" / "bin" / "nats-server"

OLDER = os.environ.get("MUSTER_OLDER_NATS") or (str(_FETCHED) if os.access(_FETCHED, os.X_OK) else "")
only_with_an_older_server = pytest.mark.skipif(
    not OLDER, reason="there is no nats-server before 2.14: MUSTER_OLDER_NATS names none, and make could fetch none"
)
