"""The measures: one module each, all with ``MEASURES``, which names what it can measure."""
