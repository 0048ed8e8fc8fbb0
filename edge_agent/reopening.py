"""Wait before a source is opened once more: longer each time, until reading goes well or the connection is back."""

from edge_agent.ingest.port import Source

FIRST_RETRY = 0.1
LONGEST_RETRY = 5.0


class Reopening:
    """How long one source is left alone after it could not be read, in seconds."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._retry_after = FIRST_RETRY

    def went_well(self) -> None:
        """Begin with the shortest wait again."""
        self._retry_after = FIRST_RETRY

    async def wait(self) -> None:
        """Wait; a connection that comes back ends it at once."""
        is_back = await self._source.comes_back(self._retry_after)
        self._retry_after = FIRST_RETRY if is_back else min(self._retry_after * 2, LONGEST_RETRY)
