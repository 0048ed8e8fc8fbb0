#!/usr/bin/env bash
# Lays out the files of the package muster-agent below DIRECTORY, for each given version of Python:
#   packaging/agent/tree.sh DIRECTORY 3.12 3.14
# The same commit gives the same bytes. Everything comes from the locks; what the agent never imports stays out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly root=$(realpath -m "$1") site=$(realpath -m "$1")/usr/lib/muster-agent/site; shift
readonly bin=$PWD/.venv/bin files=packaging/agent
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

refuse() { printf 'packaging/agent/tree.sh: %s\n' "$*" >&2; exit 1; }
uv_install() {
    "$bin/uv" pip install --quiet --system-certs --target "$1" --python-platform x86_64-manylinux_2_28 "${@:2}"
}

"$bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$place" .
for version; do
    # nkeys comes as source only, and is pure Python.
    uv_install "$place/$version" --python-version "$version" --require-hashes --only-binary :all: --no-binary nkeys \
        --no-build-isolation -r packaging/requirements-agent.txt
    uv_install "$place/$version" --python-version "$version" --no-deps "$place"/muster-*.whl
    cd "$place/$version"
    # PyNaCl needs of cffi its compiled module only; a configuration of the peer's is read once, so without libyaml.
    rm -rf .lock bin cffi pycparser* aggregator shared/embedded nacl/py.typed _yaml yaml/_yaml*
    find . \( -name '*.py[ixcd]' -o -name '*.pxd' -o -name py.typed -o -name __pycache__ \) -prune -exec rm -rf {} +
    find . -path '*.dist-info/*' -type f -not -name METADATA -not -path '*/licenses/*' -delete
    sed -i '/^Requires-Dist:.*extra ==/d; /^Provides-Extra:/d' muster-*.dist-info/METADATA
    find . -name '*.so' -exec strip --strip-unneeded {} +
    cd - >/dev/null
    # One tree serves all versions: only the names of compiled modules may differ.
    mkdir -p "$site"
    (cd "$place/$version" && find . -type f -not -name '*.so' -print0) | while IFS= read -r -d '' file; do
        [[ ! -e $site/$file ]] || cmp -s "$place/$version/$file" "$site/$file" || refuse "$file differs between versions of Python"
    done
    cp -a "$place/$version/." "$site"
done

choice=$(printf ',%s' "$@")
install -D -m 0755 <(sed "s/@PYTHONS@/$(printf '%s\n' "$@" | sort -rV | xargs)/; s/@CHOICE@/${choice:1}/" $files/muster-agent.sh) \
    "$root/usr/bin/muster-agent"
install -D -m 0644 $files/launch.py "$root/usr/lib/muster-agent/launch.py"
units=$root/usr/lib/systemd/system
install -D -m 0644 -t "$units" $files/muster-agent.service
# Several on one host: muster-agent@dub1 reads dub1.toml, which names a store and a port of its own.
sed 's|^Description=.*|& (%i)|; s|^ExecStart=.*|& --config /etc/muster-agent/%i.toml|' $files/muster-agent.service \
    >"$units/muster-agent@.service"
install -D -m 0644 $files/muster-agent.preset "$root/usr/lib/systemd/system-preset/90-muster-agent.preset"
install -D -m 0644 $files/sysusers.conf "$root/usr/lib/sysusers.d/muster-agent.conf"
install -D -m 0644 -t "$root/usr/lib/firewalld/services" $files/muster-agent.xml
install -D -m 0640 -t "$root/etc/muster-agent" $files/agent.toml
install -D -m 0644 -t "$root/usr/share/doc/muster-agent" README.md CHANGELOG.md
"$bin/python" $files/sbom.py "$site" >"$root/usr/share/doc/muster-agent/sbom.cdx.json"
"$bin/sphinx-build" --quiet -d "$place/read" -b man docs "$place/man"
install -d "$root/usr/share/man/man1"
gzip -9n <"$place/man/man1/muster-agent.1" >"$root/usr/share/man/man1/muster-agent.1.gz"
find "$root" -type d -exec chmod 0755 {} + -o -path "$site/*" -type f -exec chmod 0644 {} +
chmod 0750 "$root/etc/muster-agent"
find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
