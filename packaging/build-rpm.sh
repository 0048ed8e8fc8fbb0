#!/usr/bin/env bash
# Builds the RPMs into DIRECTORY (default: dist). The same commit gives the same bytes; nothing is signed.
# TREE=DIRECTORY takes the agent's files from there, and lays them out there first where it does not exist.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v rpmbuild >/dev/null || { echo "make rpm needs rpmbuild: apt-get install rpm, or dnf install rpm-build" >&2; exit 1; }
out=$(realpath -m "${1:-dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

tree=${TREE:-$place/tree}
[[ -d $tree ]] || packaging/agent/tree.sh "$tree" 3.12 3.14
rpmbuild --quiet -bb --define "_topdir $place" --define "_rpmdir $out" --define "_rpmfilename %%{name}-%%{version}-%%{release}.%%{arch}.rpm" \
    --define "muster_version $version" --define "muster_tree $tree" rpm/muster-agent.spec
ls -1 "$out"/muster-agent-"$version"-*.rpm
