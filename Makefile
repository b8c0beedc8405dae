# Two commands for newcomers: `make demo` and `make test`. Both prepare .venv when it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

.venv/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/reelweave demo

test: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache demo-out
