# Every target runs in .venv, which packaging/bootstrap.sh makes once and keeps up to date with the locks.
BIN := .venv/bin
PYTEST_ARGS ?=
# Tests wait for real time more than they compute: four of them keep two cores busy (tests/support/distribution.py).
WORKERS ?= 4
LOCK_ARGS ?=
PACKAGES ?= 1
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo scenarios test check bench bench-quick docs lock rpm aggregator-rpm rpm-test deb deb-test release-check \
	soak mutants clean environment

help: ## Say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

demo: environment ## Run a fleet, agents, regions and a hub on this machine, and compare the tables with the truth
	@$(BIN)/muster-aggregator demo

scenarios: environment ## Play the documented ways of replication (NAME=data-replication: one; STAY=1: until Ctrl-C)
	@$(BIN)/python -m pytest --quiet --no-header --capture=no -p no:randomly $(if $(STAY),--stay --timeout 0) \
		tests/scenarios/$(if $(NAME),test_$(subst -,_,$(NAME)).py)

test: check ## Check, then run all tests (PYTEST_ARGS="tests/unit -x" narrows them, WORKERS=0: one after the other)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: environment ## Lint, formatting, types and import contracts; changes nothing
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: environment ## Measure, at full size (PEER=PATH: a stream-replicator beside ours; BENCH_ARGS="--json FILE million")
	@$(BIN)/python -m tests.bench $(if $(PEER),--peer $(PEER)) $(BENCH_ARGS)

bench-quick: environment ## Measure at small sizes, in under two minutes
	@$(BIN)/python -m tests.bench --quick $(if $(PEER),--peer $(PEER)) $(BENCH_ARGS)

soak: environment ## Run all of it under load and faults for HOURS=1 (SEED=N as another run said): lost, doubled, wrong, growth
	@$(BIN)/python -m tests.soak $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED))

docs: environment ## Write docs/reference out of the code, and build the manual (build/docs/html) and its man pages
	@$(BIN)/python -m tests.support.documents.reference
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -E -d build/docs/read -b html docs build/docs/html
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -d build/docs/read -b man docs build/docs/man

lock: environment ## Bring the locks up to pyproject.toml (LOCK_ARGS=--upgrade: to the newest versions too)
	@$(LOCK) pyproject.toml --extra dev --output-file packaging/requirements-dev.txt
	@$(LOCK) pyproject.toml --extra lakehouse --extra live --constraint packaging/requirements-dev.txt \
		--output-file packaging/requirements-aggregator.txt
	@$(LOCK) pyproject.toml --constraint packaging/requirements-dev.txt --output-file packaging/requirements-agent.txt
	@$(LOCK) --group build --output-file packaging/requirements-build.txt
	@$(LOCK) --group older --output-file packaging/requirements-older.txt
	@! grep -n -i -E '://|^-' packaging/requirements-*.txt

rpm: environment ## Build the agent's RPM for EL8, EL9 and EL10 into dist (needs rpmbuild and strip)
	@packaging/build-rpm.sh agent dist

aggregator-rpm: environment ## Build the aggregator's RPMs, with and without Spark, into dist (600 MB)
	@packaging/build-rpm.sh aggregator dist

rpm-test: environment ## Build both, and install, upgrade and erase them on throw-away machines (as root, with systemd-nspawn)
	@MUSTER_PACKAGES=1 $(BIN)/python -m pytest tests/acceptance/test_packages.py tests/acceptance/test_aggregator_package.py

deb: environment ## Build the agent's package for Debian 12 and 13 and Ubuntu 24.04 into dist (needs dpkg-deb and strip)
	@packaging/build-deb.sh dist

deb-test: environment ## Build it, and install, upgrade, remove and purge it on a throw-away machine (as root)
	@$(BIN)/python -m pytest tests/acceptance/test_debian_package.py

release-check: environment ## Build wheel and packages from a clean clone, install and run them (KEEP=DIR keeps them, PACKAGES=: the wheel)
	@PACKAGES=$(PACKAGES) packaging/release-check.sh

mutants: environment ## Apply each wrong change of tests/mutants/mutations.toml to a copy of the tree: a test must fail (half an hour)
	@$(BIN)/python -m tests.mutants

clean: ## Remove what tests, checks, builds and the demo leave; .venv and the jars stay
	@rm -rf build dist demo-run spark-warehouse metastore_db derby.log *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

environment:
	@packaging/bootstrap.sh
