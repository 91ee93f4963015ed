# Each target sets up what it needs in .venv, once. Only Python 3.11 to 3.13, pip and make must be there.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-fast lint bench docs clean

demo: .venv/ready-demo
	$(BIN)/python -m recipes.demo

test: .venv/ready-dev
	$(BIN)/python -m pytest -n 2

test-fast: .venv/ready-dev
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-dev
	$(BIN)/python -m benchmarks.unfold
	$(BIN)/python -m benchmarks.nmf
	$(BIN)/python -m benchmarks.mrf
	$(BIN)/python -m benchmarks.speech

docs: .venv/ready-dev
	$(BIN)/python -m pytest -q tests/test_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site build dist demo

.venv/ready-demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[plot]'
	touch $@

.venv/ready-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	touch $@
