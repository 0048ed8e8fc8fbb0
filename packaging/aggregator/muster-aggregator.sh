#!/bin/sh
# The Python for which the package brings compiled modules.
exec /usr/bin/python@PYTHON@ -ISB /usr/lib/muster-aggregator/launch.py "$@"
