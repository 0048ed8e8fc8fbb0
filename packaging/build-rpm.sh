#!/usr/bin/env bash
# Builds the RPMs of the agent, or of the aggregator and its Spark, into DIRECTORY (default: dist):
#   packaging/build-rpm.sh agent|aggregator [DIRECTORY]
# The same commit gives the same bytes; nothing is signed. TREE=DIRECTORY takes the files from there, and lays them out
# there first where it does not exist. WITHOUT_SPARK=1 leaves Spark out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v rpmbuild >/dev/null || { echo "make rpm needs rpmbuild: apt-get install rpm, or dnf install rpm-build" >&2; exit 1; }
# The Pythons that EL8, EL9 and EL10 have; the aggregator's libraries are too large to bring twice.
declare -rA pythons=([agent]="3.12 3.14" [aggregator]=3.12)
readonly name=$1 out=$(realpath -m "${2:-dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

tree=${TREE:-$place/tree}
# shellcheck disable=SC2086 # several words are meant
[[ -d $tree ]] || "packaging/$name/tree.sh" "$tree" ${pythons[$name]}
rpmbuild --quiet -bb --define "_topdir $place" --define "_rpmdir $out" \
    --define "_rpmfilename %%{name}-%%{version}-%%{release}.%%{arch}.rpm" --define "muster_version $version" \
    --define "muster_tree $tree" --define "with_spark $([[ -d $tree/usr/lib/muster-aggregator/spark ]] && echo 1 || echo 0)" \
    "rpm/muster-$name.spec"
ls -1r "$out/muster-$name"-*"$version"-*.rpm
