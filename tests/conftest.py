"""What holds for every test: failures of Hypothesis can be played again, and machines may be slow."""

import signal

from hypothesis import settings

# The seed of a run stands in its first lines (pytest-randomly), the example that failed in its last.
settings.register_profile("muster", deadline=None, print_blob=True)
settings.load_profile("muster")

# A shell starts what it runs in the background with SIGINT ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
