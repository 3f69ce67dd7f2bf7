# Each target sets up what it needs in .venv; only Python 3.11+ and make have to be there.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help serve test test-newer-engine test-postgres races races-postgres stress faults faults-long failover prove-guards model check format bench wheel fuzz pin audit clean

# How long and with which seed `make stress` runs.
SECONDS ?= 600
SEED ?=
FUZZ_SECONDS ?= 30

help:  ## Say what there is to run
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

serve: .venv/api  ## Serve on http://127.0.0.1:8080, on the database of SESSIONSTORE_DATABASE_URL or in your data directory
	$(BIN)/sessionstore serve

test: .venv/dev  ## Run the tests
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-postgres: .venv/dev  ## Run the same tests on a PostgreSQL server, which they start by themselves (needs Debian's postgresql)
	SESSIONSTORE_TEST_ENGINE=postgresql $(BIN)/python -m pytest -q -n auto --dist worksteal

test-newer-engine: .venv/engine  ## Run the tests on the SQLite of the pysqlite3 wheel, which has no fault
	SESSIONSTORE_SQLITE=pysqlite3 $(BIN)/python -m pytest -q -n auto --dist worksteal

races: .venv/dev  ## Run the races: threads, processes and servers, with the bad moment made certain
	$(BIN)/python -m pytest -q tests/races

races-postgres: .venv/dev  ## Run the races on a PostgreSQL server, and let clients and kill -9 run free on it for 20 s
	SESSIONSTORE_TEST_ENGINE=postgresql $(BIN)/python -m pytest -q tests/races
	$(BIN)/python -m tests.races.stress --engine postgresql --seconds 20

stress: .venv/dev  ## Let clients and kill -9 run free on several servers, and check every history (SECONDS=600 SEED=)
	$(BIN)/python -m tests.races.stress --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

faults: .venv/dev  ## Kill, cut the power, fill the disk, move the clock, …: a short run of each (needs root, strace and faketime)
	$(BIN)/python -m tests.faults

faults-long: .venv/dev  ## The same as often and as long as the table in docs/faults.md says (WRITE=docs/faults.md keeps it)
	$(BIN)/python -m tests.faults --long $(if $(WRITE),--write $(WRITE))

failover: .venv/dev  ## Kill API servers, restart and crash PostgreSQL, promote a standby: acknowledged, lost, and the outage
	$(BIN)/python -m tests.failover

prove-guards: .venv/dev  ## Take each guard out of the code and show which tests notice
	$(BIN)/python -m tests.prove_guards

model: .venv/dev  ## Check the protocol on paper (needs spin and gcc)
	$(BIN)/python -m tests.model.check

check: .venv/dev  ## Lint, format, types, import rules, documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_public_api.py

format: .venv/dev  ## Format the code and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/bench .venv-peers/ready  ## Measure everything in one run, beside the peers (needs cc and wrk; WRITE=docs/speed keeps it)
	$(BIN)/python -m benchmarks $(if $(WRITE),--write $(WRITE))

wheel: .venv/dev  ## Build the wheel, install it into a bare environment, migrate, serve, answer
	$(BIN)/python -m pytest -q -m wheel

fuzz: .venv/dev .venv-fuzz/ready  ## Send what nobody would send: to every decoder, and beside it to a running server (FUZZ_SECONDS=30 each)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

pin: .venv-pins/ready  ## Pin and hash what a server needs, and write its bill of materials (requirements/)
	.venv-pins/bin/python requirements/pin.py

audit: .venv-pins/ready  ## Look for known faults in what is pinned (asks the index's list of vulnerabilities)
	.venv-pins/bin/pip-audit --requirement requirements/server.txt --disable-pip --require-hashes --strict

clean:  ## Remove the environments
	rm -rf .venv .venv-fuzz .venv-peers .venv-pins

.venv/pip:
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade 'pip>=25.1'
	touch $@

.venv/api: .venv/pip pyproject.toml
	$(PIP) install --editable '.[api]'
	touch $@

.venv/dev: .venv/api pyproject.toml
	$(PIP) install --group dev
	touch $@

.venv/engine: .venv/dev pyproject.toml
	$(PIP) install --editable '.[api,engine]'
	touch $@

.venv/bench: .venv/dev pyproject.toml
	$(PIP) install --group bench
	touch $@

.venv-peers/ready: pyproject.toml .venv/pip
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --quiet install --upgrade 'pip>=25.1'
	.venv-peers/bin/python -m pip --quiet install --group peers
	touch $@

.venv-pins/ready: pyproject.toml .venv/pip
	$(PYTHON) -m venv .venv-pins
	.venv-pins/bin/python -m pip --quiet install --upgrade 'pip>=25.1'
	.venv-pins/bin/python -m pip --quiet install --group pins
	touch $@

.venv-fuzz/ready: pyproject.toml .venv/pip
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip --quiet install --upgrade 'pip>=25.1'
	.venv-fuzz/bin/python -m pip --quiet install --group fuzz
	touch $@
