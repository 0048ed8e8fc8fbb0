"""Run the whole system for hours under load and faults: ``python -m tests.soak --hours 1``."""
