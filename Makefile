# Duewheel. `make` alone lists what can be made. `make demo` and `make test` set everything up by themselves.
#
# Needed: Python 3.11 or newer with venv, and the package registry that pip is configured for. Nothing else: the broker's jars and its
# Java runtime come as Python packages too.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Which Python makes .venv; name another with `make setup PYTHON=python3.13`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Pins with hashes; pip takes nothing else, and builds nothing.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
FROM_LOCK := --require-hashes --only-binary :all: --requirement
# What follows is handed on: `make test ARGS='-k T3 -x'`, `make bench-path ARGS=--json`.
ARGS ?=

.PHONY: help setup demo test fast simulate lint format types contracts broker wheel lock clean
.PHONY: fuzz chaos
.PHONY: bench-path bench-lateness bench-end-to-end bench-pending bench-failing

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ------------------------------------------------------------------------------------------------------------- setting up

setup: $(VENV)/.installed ## Make .venv with everything from the lock; does nothing when it is up to date

$(VENV)/.created:
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: Python 3.11 or newer is needed, and '$(PYTHON)' is not one; name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/.locked: requirements/dev.txt | $(VENV)/.created
	@echo "setup: installing the packages of $< (the first time, about 300 MB)"
	@$(PIP_INSTALL) $(FROM_LOCK) $<
	@touch $@

# The build backend came with the lock; isolation would fetch another one, unpinned.
$(VENV)/.installed: pyproject.toml $(VENV)/.locked
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# ------------------------------------------------------------------------------------------------------------- running

demo: setup ## Schedule, fire, run and complete 2,000 jobs on a real broker, with crashes; ends by itself
	@$(BIN)/duewheel demo $(ARGS)

broker: setup ## Run a real Kafka broker in the foreground; Ctrl-C ends it
	@$(BIN)/duewheel dev broker $(ARGS)

bench-path: setup ## Measure the timer path against a bare loop on the same broker
	@$(BIN)/duewheel bench path $(ARGS)

bench-lateness: setup ## Measure how late jobs start at a steady rate
	@$(BIN)/duewheel bench lateness $(ARGS)

bench-end-to-end: setup ## Measure no-op jobs per second, from intake to accepted completion
	@$(BIN)/duewheel bench end-to-end $(ARGS)

bench-failing: setup ## Measure 100,000 jobs that fail five times each: all dead, evenly spread, memory flat
	@$(BIN)/duewheel bench failing $(ARGS)

bench-crons: setup ## Measure 100,000 cron jobs on one moment: how late, and who else has to wait
	@$(BIN)/duewheel bench crons $(ARGS)

bench-pending: setup ## Measure memory, disk and restore with a million jobs pending
	@$(BIN)/duewheel bench pending $(ARGS)

# ------------------------------------------------------------------------------------------------------------- checking

# Tests that need a broker wait for it most of the time, so several run beside each other, each process with a broker of its own.
# One after the other: make test PROCESSES=0.
PROCESSES ?= 3

test: setup lint types contracts ## Everything that is checked: style, types, dependencies, all tests
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup $(ARGS)

fast: setup ## Only the tests that need no broker: tests/unit and tests/property
	@$(BIN)/python -m pytest tests/unit tests/property $(ARGS)

# `make fuzz INPUTS=100000 SEED=7`; without SEED one is chosen and shown.
INPUTS ?= 1000000
fuzz: setup ## Throw a million bad inputs at everything that reads what comes from outside
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED)) $(ARGS)

simulate: setup ## Run the real engine and workers in virtual time, with faults by seed: SEEDS=1000, FIRST=1, or one SEED=4711
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),300) --first $(or $(FIRST),1)) $(ARGS)

# `make chaos ARGS="--jobs 50000 --kills 20 --pauses 10 --partitions 5 --broker-kills 5 --damaged-stores 3"`; SEED as above.
chaos: setup ## Break a whole installation, processes and brokers, and prove what became of 5,000 jobs
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: setup ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## Repair style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup ## Check types, strictly
	@$(BIN)/mypy

contracts: setup ## Check that dependencies point one way
	@$(BIN)/lint-imports --no-logo --no-cache

# ------------------------------------------------------------------------------------------------------------- shipping

wheel: setup ## Build the wheel, install it in an empty environment, run it there
	@rm -rf dist build/empty
	@$(BIN)/python -m hatchling build
	@"$(BIN)/python" -m venv build/empty
	@build/empty/bin/python -m pip install --quiet --disable-pip-version-check $(FROM_LOCK) requirements/runtime.txt
	@build/empty/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index dist/*.whl
	@cd build/empty && bin/duewheel --version && bin/duewheel --help > /dev/null && bin/python ../../tests/installed.py

COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links
COMPILE += --python-version 3.11 pyproject.toml

lock: setup ## Choose the pins of requirements/*.txt; ARGS=--upgrade takes newer versions
	@$(PIP_INSTALL) $(FROM_LOCK) requirements/lock.txt
	@$(COMPILE) $(ARGS) --output-file requirements/runtime.txt
	@$(COMPILE) $(ARGS) --extra broker --extra otel --group dev --constraint requirements/runtime.txt --output-file requirements/dev.txt
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
		--python-version 3.11 $(ARGS) --group lock --output-file requirements/lock.txt

clean: ## Remove what was made, .venv included; the broker's data in .duewheel stays
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find pipeline tests -name __pycache__ -type d -prune -exec rm -rf {} +
