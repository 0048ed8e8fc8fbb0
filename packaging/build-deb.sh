#!/usr/bin/env bash
# Builds the agent's package for Debian 12 and 13 and Ubuntu 24.04 into DIRECTORY (default: dist).
# The same commit gives the same bytes. TREE=DIRECTORY takes the files from there, and lays them out there first where
# it does not exist.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v dpkg-deb >/dev/null || { echo "make deb needs dpkg-deb: apt-get install dpkg, or dnf install dpkg" >&2; exit 1; }
readonly out=$(realpath -m "${1:-dist}") pythons=(3.11 3.12 3.13) files=packaging/deb
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

tree=${TREE:-$place/tree}
[[ -d $tree ]] || packaging/agent/tree.sh "$tree" "${pythons[@]}"
cp -a "$tree" "$place/package"
cd "$place/package"
sources=$OLDPWD
# Debian wants licences there, under that name.
install -m 0644 "$sources/LICENSE" usr/share/doc/muster-agent/copyright
install -d -m 0755 DEBIAN
depends=$(printf ' | python%s' "${pythons[@]}")
sed "s/@VERSION@/$version/; s/@PYTHONS@/${depends:3}/; s/@SIZE@/$(du -sk --exclude DEBIAN . | cut -f1)/" \
    "$sources/$files/control" >DEBIAN/control
echo /etc/muster-agent/agent.toml >DEBIAN/conffiles
for script in postinst prerm postrm; do
    sed "s|@INTERPRETERS@|$(printf '/usr/bin/python%s ' "${pythons[@]}" | xargs)|" "$sources/$files/$script" >DEBIAN/$script
    chmod 0755 DEBIAN/$script
done
find . -type f -not -path './DEBIAN/*' -not -path ./etc/muster-agent/agent.toml -printf '%P\0' | LC_ALL=C sort -z |
    xargs -0 md5sum >DEBIAN/md5sums
chmod 0644 DEBIAN/control DEBIAN/conffiles DEBIAN/md5sums
find . -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
package=$out/muster-agent_${version}_amd64.deb
dpkg-deb --root-owner-group -Zxz --build . "$package" >/dev/null
echo "$package"
