#!/usr/bin/env bash
# Builds the wheel of what is committed from a clean clone, installs it into a clean environment as documented, and runs
# it. Changes nothing in this clone. Takes a minute; KEEP=DIRECTORY (in this clone) keeps what was built, with release notes
# and sums to sign. PACKAGES=1 does the first site's page with the wheel too, builds all packages from that clone and, as
# root with systemd-nspawn, installs, upgrades and erases them.
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
commit=$(git rev-parse --short=12 HEAD)
for tag in $(git tag --points-at HEAD); do
    [[ $tag == "v$version" ]] || refuse "the commit is tagged $tag, but its version is $version"
    grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || refuse "CHANGELOG.md: [$version] has no date"
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
is_in "$version (commit $commit)" "$("$agent" --version)" || refuse "$("$agent" --version): it is $version of $commit"
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
    say "doing what the page on the first site says, with the wheel"
    # Libraries are those of this clone's environment; ours come from the wheel, since its sources are not there.
    "$source/.venv/bin/python" -m venv "$place/tested"
    pip "$place/tested" install --no-deps --no-index "$place/clone/$wheel"
    sites=("$place"/tested/lib/python3*/site-packages)
    "$source/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"${sites[0]}/libraries.pth"
    ln -s "$source/.venv/bin/nats-server" tested/bin
    mkdir page
    cp -r clone/{tests,docs,packaging,pyproject.toml} page
    (cd page && ../tested/bin/python -m pytest -q -p no:cacheprovider tests/acceptance/test_first_site.py) ||
        refuse "the wheel does not do what the page on the first site says"

    say "building the packages, and trying them on throw-away machines"
    cd "$place/clone"
    # Its tools; what is packaged is the clone's.
    ln -s "$source/.venv" .venv
    MUSTER_PACKAGES=1 MUSTER_DIST=$PWD/dist .venv/bin/python -m pytest -q -p no:cacheprovider \
        tests/acceptance/test_{packages,debian_package,aggregator_package}.py || refuse "the packages do not do what they shall"
    for built in "muster-agent-$version-1.x86_64.rpm" "muster-agent_${version}_amd64.deb" \
        "muster-aggregator-$version-1.x86_64.rpm" "muster-aggregator-spark-$version-1.noarch.rpm"; do
        [[ -f dist/$built ]] || refuse "no $built: what this host lacks to build and try it, the tests above have said"
    done
    cd "$place"
fi

cd "$place/clone"
awk -v section="## [$version]" '/^## / { take = index($0, section) == 1; next } take' CHANGELOG.md >dist/release-notes.md
(cd dist && sha256sum -- * >"$place/sums" && mv "$place/sums" SHA256SUMS)
if [[ -n $keep ]]; then
    mkdir -p "$keep"
    cp dist/* "$keep"
fi
say "muster $version ($commit) is good:"
cat dist/SHA256SUMS
