#!/usr/bin/env bash
# Builds the RPMs muster-aggregator and muster-aggregator-spark into DIRECTORY (default: dist). Nothing is signed.
# TREE=DIRECTORY takes the files from there, and lays them out there first where it does not exist. WITHOUT_SPARK=1
# builds the first alone.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v rpmbuild >/dev/null || { echo "make rpm needs rpmbuild: apt-get install rpm, or dnf install rpm-build" >&2; exit 1; }
out=$(realpath -m "${1:-dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

tree=${TREE:-$place/tree}
[[ -d $tree ]] || packaging/aggregator/tree.sh "$tree" 3.12
rpmbuild --quiet -bb --define "_topdir $place" --define "_rpmdir $out" \
    --define "_rpmfilename %%{name}-%%{version}-%%{release}.%%{arch}.rpm" --define "muster_version $version" \
    --define "muster_tree $tree" --define "with_spark $([[ -d $tree/usr/lib/muster-aggregator/spark ]] && echo 1 || echo 0)" \
    rpm/muster-aggregator.spec
ls -1r "$out"/muster-aggregator-*"$version"-*.rpm
