# `make demo` and `make test` do all the set-up themselves: Python 3.11 or newer, pip and git are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers

.PHONY: demo test faults bench check format format-check lint types clean

demo: $(VENV)/.product
	$(BIN)/python run_batch.py demo

# Three at a time: they wait for processes more than they compute.
test: $(VENV)/.development
	$(BIN)/python -m pytest -n 3 --dist worksteal

# The long part of the fault tests, which ends with a table.
faults: $(VENV)/.development
	$(BIN)/python -m pytest -m "long or not long" --timeout 1200 tests/faults

# The product beside its peers, which have an environment of their own; ends with a table. Shorter: make bench BENCH=--quick
bench: $(VENV)/.development $(PEERS)/.installed
	$(BIN)/python -m benchmarks $(BENCH)

check: format-check lint types test

format: $(VENV)/.development
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(VENV)/.development
	$(BIN)/ruff format --check .

lint: $(VENV)/.development
	$(BIN)/ruff check .

types: $(VENV)/.development
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flights needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.product: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.development: requirements-dev.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@ $(VENV)/.product

$(PEERS)/.installed: benchmarks/peers/requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache data/*/out
