# SPDX-License-Identifier: Apache-2.0
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RESULTS ?= docs/results/reproduction

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help test test-slow test-engines demo reproduce figures lint format bench docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) \
		| awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

test: $(VENV)/.installed-tests  ## Run the tests and doctests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# Properties run here too, with ten times as many examples.
test-slow: $(VENV)/.installed-tests  ## Run the tests that take minutes
	$(BIN)/python -m pytest -q -m "slow or hypothesis" --hypothesis-profile many

# Spark (456 MB) is not part of the tests' environment; it needs Java 17.
test-engines: $(VENV)/.installed-tests $(VENV)/.installed-spark  ## Install Spark and run all tests of Dask and Spark
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow or not slow" tests/engines

demo: $(VENV)/.installed-tests  ## Train on a census table at three budgets; leaves demo/
	$(BIN)/armijo demo --out demo

reproduce: $(VENV)/.installed-tests  ## Run or resume an experiment: NAME=... [ARGS="--fast"]
	$(BIN)/python -m armijo_reproduction $(if $(NAME),run $(NAME) --results $(RESULTS) $(ARGS),list)

figures: $(VENV)/.installed-tests  ## Draw the figures, tables and page of the results
	$(BIN)/python -m armijo_reproduction figures --results $(RESULTS) --out docs/figures \
		--tables docs/reproduction-tables.md --page docs/reproduction.md

lint: $(VENV)/.installed-dev  ## Check style, types and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Apply the formatter and the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench  ## Measure against peers; writes benchmarks/latest.json
	$(BIN)/python -m benchmarks

docs: $(VENV)/.installed-docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## Remove the environment, caches and everything built
	rm -rf $(VENV) build dist site src/*.egg-info reproduction/src/*.egg-info
	rm -rf benchmarks/latest.json reproduction/build
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find benchmarks reproduction src tests -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so that a half-made environment is made again.
$(VENV)/.made:
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# setuptools is installed first because building without isolation is what keeps the
# build tools at the versions of the constraints file. The reproduction is a project of
# its own, so that it is not in the wheel; tests, documentation and examples use it.
$(VENV)/.installed-%: pyproject.toml reproduction/pyproject.toml constraints.txt | $(VENV)/.made
	$(PIP) install --quiet -c constraints.txt setuptools
	$(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[$*]' -e ./reproduction
	touch $@
