# `make` prints what there is to do. Everything runs in .venv, which `make setup` builds.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup test servers demo bench soak fuzz lint clean nexmark

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KILLS ?= 50
SEEDS ?= 100
FIRST ?= 0
EVENTS ?= 1000000

# The first Python that is new enough; override with `make setup PYTHON=/path/to/python`.
PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$candidate; break; fi; done)

help: ## what there is to do
	@echo "velostream: SQL whose tables stay up to date"
	@echo
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)$$/  make \1|\2/' | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## build .venv with everything that is needed (again only when the requirements change)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; name one: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@echo "==> $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing velostream and its tools"
	@$(BIN)/python -m pip install --disable-pip-version-check --root-user-action=ignore --constraint constraints.txt --editable '.[dev]'
	@if $(BIN)/python -c 'from velostream.engine.java import find_java; print("==> using", find_java())' 2>/dev/null; then :; else \
		echo "==> no Java 17 or newer here: installing one into $(VENV)"; \
		$(BIN)/python -m pip install --disable-pip-version-check --root-user-action=ignore --constraint constraints.txt --editable '.[jdk]'; \
	fi
	@echo "==> preparing Spark for fast starts (a minute or so, once)"
	@$(BIN)/velostream doctor --fix
	@touch $@

test: lint servers ## what CI runs: lint, types, layers, and all tests
	$(BIN)/python -m pytest

servers: setup ## fetch the servers that the tests run against, into a cache outside the repository
	@$(BIN)/python -m velostream.testing.services fetch

lint: setup ## ruff, mypy --strict and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src benchmarks
	$(BIN)/lint-imports --no-logo

demo: setup ## a trading desk on live tables, in under a minute
	$(BIN)/velostream demo

bench: setup ## measure against plain PySpark and check the results
	$(BIN)/python -m benchmarks

soak: setup ## kill the process KILLS times (50) under load and compare with a batch run
	VELOSTREAM_SOAK_KILLS=$(KILLS) $(BIN)/python -m pytest -s tests/faults/test_kill.py

fuzz: setup ## play SEEDS (100) random cases from seed FIRST (0) on: every view against Spark's answer
	$(BIN)/python -m velostream.testing.fuzz --seeds $(SEEDS) --first $(FIRST)

nexmark: setup ## the 23 queries of Nexmark over EVENTS events (1000000), compared with a batch run
	VELOSTREAM_NEXMARK_EVENTS=$(EVENTS) $(BIN)/python -m pytest -s tests/views/test_nexmark.py

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
