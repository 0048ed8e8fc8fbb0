#!/usr/bin/env bash
# Builds the RPMs into DIRECTORY (default: dist). The same commit gives the same bytes; nothing is signed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v rpmbuild >/dev/null || { echo "make rpm needs rpmbuild: apt-get install rpm, or dnf install rpm-build" >&2; exit 1; }
out=$(realpath -m "${1:-dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

packaging/agent/tree.sh "$place/tree" 3.12 3.14
rpmbuild --quiet -bb --define "_topdir $place" --define "_rpmdir $out" --define "_rpmfilename %%{name}-%%{version}-%%{release}.%%{arch}.rpm" \
    --define "muster_version $version" --define "muster_tree $place/tree" rpm/muster-agent.spec
ls -1 "$out"/muster-agent-"$version"-*.rpm
