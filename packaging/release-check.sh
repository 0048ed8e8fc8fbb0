#!/usr/bin/env bash
# Builds the wheel of what is committed from a clean clone, installs it into a clean environment as documented, and runs
# it. Changes nothing in this clone. Takes a minute; KEEP=DIRECTORY (in this clone) keeps what was built. PACKAGES=1 builds
# the agent's packages from that clone too and, as root with systemd-nspawn, installs, upgrades and erases them.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-/usr/bin/python3} keep=${KEEP:+$PWD/$KEEP} source=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

say() { printf 'release-check: %s\n' "$*"; }
refuse() { say "$@" >&2; exit 1; }
pip() { "$1/bin/python" -m pip --disable-pip-version-check --quiet "${@:2}"; }
is_in() { grep -qF -- "$1" <<<"$2"; }

[[ -z $(git status --porcelain) ]] || refuse "commit first: what is not committed is not in a release"
git clone --quiet . "$place/clone"
cd "$place/clone"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
grep -q "^## \[$version\]" CHANGELOG.md || refuse "CHANGELOG.md has no section [$version]"
for tag in $(git tag --points-at HEAD); do
    [[ $tag == "v$version" ]] || refuse "the commit is tagged $tag, but its version is $version"
done

say "building muster $version"
"$python" -m venv "$place/build"
pip "$place/build" install --require-hashes -r packaging/requirements-build.txt
pip "$place/build" wheel --no-deps --no-build-isolation --wheel-dir dist .
wheel=dist/muster-$version-py3-none-any.whl
[[ -f $wheel ]] || refuse "no $wheel, but $(ls dist)"
for wanted in edge_agent/cli.py aggregator/lakehouse/page/page.css shared/wire.py; do
    is_in "$wanted" "$("$python" -m zipfile --list "$wheel")" || refuse "$wheel lacks $wanted"
done

say "installing it as documented"
"$python" -m venv "$place/installed"
pip "$place/installed" install --require-hashes -r packaging/requirements-build.txt
pip "$place/installed" install --require-hashes --use-pep517 --no-build-isolation --only-binary :all: --no-binary nkeys \
    -r packaging/requirements-agent.txt
pip "$place/installed" install --force-reinstall --no-deps "$wheel"
pip "$place/installed" check

say "running it"
cd "$place"
agent=installed/bin/muster-agent
is_in "$version" "$("$agent" --version)" || refuse "$("$agent" --version), but the version is $version"
"$agent" check-config --config clone/docs/by-hand/agent.toml >checked.toml
is_in 'site = "dub1"' "$(<checked.toml)" || refuse "check-config does not print what is in effect"
"$agent" doctor --help >/dev/null
"$agent" status --help >/dev/null
if "$agent" run --config nowhere.toml >/dev/null 2>said; then
    refuse "the agent runs without settings"
fi
if grep -q Traceback said; then
    refuse "a person at a terminal got a traceback"
fi

if [[ -n ${PACKAGES:-} ]]; then
    say "building the agent's packages, and trying them on throw-away machines"
    cd "$place/clone"
    # Its tools; what is packaged is the clone's.
    ln -s "$source/.venv" .venv
    packaging/build-rpm.sh agent dist
    packaging/build-deb.sh dist
    .venv/bin/python -m pytest -q -p no:cacheprovider tests/acceptance/test_packages.py tests/acceptance/test_debian_package.py ||
        refuse "the packages do not do what they shall"
    cd "$place"
fi

if [[ -n $keep ]]; then
    mkdir -p "$keep"
    cp "$place"/clone/dist/* "$keep"
fi
say "muster $version is good: $(basename "$wheel"), sha256 $(sha256sum "clone/$wheel" | cut -d' ' -f1)"
