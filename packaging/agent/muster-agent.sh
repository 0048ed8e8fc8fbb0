#!/bin/sh
# The newest Python of the host for which the package brings compiled modules.
for version in @PYTHONS@; do
    if [ -x "/usr/bin/python$version" ]; then
        exec "/usr/bin/python$version" -ISB /usr/lib/muster-agent/launch.py "$@"
    fi
done
echo "muster-agent: this host has none of /usr/bin/python{@CHOICE@}: install one of them" >&2
exit 1
