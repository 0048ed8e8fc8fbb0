"""Play a scenario, and give what was found at each step."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aggregator.scenarios.narrator import Narrator, Step


async def found_by(play: Callable[[Path, Narrator], Awaitable[None]], directory: Path) -> dict[str, Any]:
    """Play it, see to it that every step came as claimed, and give the findings by their claims."""
    told: list[str] = []
    narrator = Narrator(told.append)
    await play(directory, narrator)
    wrong: list[Step] = [step for step in narrator.steps if not step.holds]
    assert not wrong, "\n".join(told)
    return {step.claim: step.found for step in narrator.steps}
