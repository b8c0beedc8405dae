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
	# In the order of the files: by default the long files of few tests come last, and one process waits for the other.
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache demo-out
