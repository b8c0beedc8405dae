# Two commands for newcomers: `make demo` and `make test`. Both prepare .venv when it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo quick test thorough nightly strict kernels lowest lint docs generated lock image-locks pin locked sbom audit dist clean

# cyclonedx-bom brings it, and does without it. Whatever imports jsonschema, so every process of Ray, takes 2.4 s longer with
# it, and on a busy machine Ray's processes then miss the seconds that they have to start.
SLOW := rfc3987-syntax

# uv downloads and unpacks several packages at a time. Only pip knows mirrors that pip alone was told of, so it has the last word.
install = $(BIN)/python -m pip install --quiet --upgrade pip && { \
    { $(BIN)/python -m pip install --quiet uv && \
      $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[$(1)]'; } || \
    $(BIN)/python -m pip install --quiet --editable '.[$(1)]'; }

.venv/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call install,dev)
	$(BIN)/python -m pip uninstall --quiet --yes $(SLOW)
	touch $@

# What the demo needs and no more, unless everything is there already.
.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test .venv/.installed -nt pyproject.toml || { $(call install,ray); }
	touch $@

demo: .venv/.demo
	$(BIN)/reelweave demo

# Containers often forbid Python to keep what it compiles; then each of some hundred processes compiles the house again.
# `make test` holds every promise by a case or two; `make thorough` adds further ones, as CI does; `make nightly` runs what is
# left: products of layouts, models and formats (tests/thorough.py, docs/notes/tests.md).
test: CASES := not toolchain and not thorough and not nightly
thorough: CASES := not toolchain and not nightly
nightly: CASES := nightly
test thorough nightly: export PYTHONDONTWRITEBYTECODE :=
test thorough nightly: .venv/.installed
	# Three processes for two cores, since tests wait, too: for leases, silence and other processes. In the order of tests/conftest.py:
	# by default the long files of few tests come last, and one process waits for the others.
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "$(CASES)" $(PYTEST_ARGS)

# All tests whose ranks have process groups, on groups that refuse what NCCL would (tests/strict_group).
strict: export STRICT_GROUP := 1
strict: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not toolchain" $(or $(PYTEST_ARGS),tests/train tests/loader tests/pipelines)

# The tests nearest to what differs from origin/main, for less than a minute; it says how many it did not reach.
quick: .venv/.installed
	$(BIN)/python -m tests.changed $(PYTEST_ARGS)

# What compiles: the kernels of csrc/ in the emulator, a mutant of each kind, and where nvcc is their code for every GPU
# architecture.
COMPILED := tests/train/kernels tests/recipes
kernels: .venv/.installed
	# Two files at a time: cubins wait for the assembler, mutants run in the emulator.
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "toolchain and not nightly" $(COMPILED)

# The lowest versions that pyproject.toml allows, in an environment of their own: tables, manifests and streams, where lower
# ones broke. Energon's extension needs newer ones.
LOWEST := cascade curate diffusers fp8 metrics mlflow sign vae wandb
LOWEST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis 'moto[server,s3]' nanio torchdata
LOWEST_TESTS := $(addprefix tests/loader/dataset/test_,dataset.py by_parts.py format.py revisions.py tables.py latents.py) \
    tests/loader/blend tests/loader/stream/loaders/test_step_loader.py tests/loader/stream/test_stream.py
.lowest/.installed: .venv/.installed
	rm -rf .lowest
	$(BIN)/uv venv --quiet --python $(BIN)/python .lowest
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --no-header pyproject.toml $(addprefix --extra ,$(LOWEST)) \
	    --output-file .lowest/pins.txt
	$(BIN)/uv pip install --quiet --python .lowest/bin/python --requirement .lowest/pins.txt $(LOWEST_TOOLS)
	$(BIN)/uv pip install --quiet --python .lowest/bin/python --no-deps --editable .
	touch $@

lowest: .lowest/.installed
	.lowest/bin/python -m pytest -m "not toolchain and not thorough and not nightly" -k "not energon" $(LOWEST_TESTS)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site. What is wrong ends it: a link or an anchor that leads nowhere, a page that no navigation names,
# a part that a browser would fetch from elsewhere. It needs no network. With --quiet it would count no warnings.
docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Pages and files that are written from the code or by a script. Tests that find one of them out of date name this target.
CONFIG_PAGE = $(BIN)/python -m reelweave.pipelines.configuration.config_docs
generated: .venv/.installed
	$(CONFIG_PAGE) page >docs/curate-config.md
	$(CONFIG_PAGE) yaml >pipelines/configs/curate.yaml
	$(CONFIG_PAGE) train >docs/train-config.md
	$(CONFIG_PAGE) vae >docs/vae-config.md
	$(CONFIG_PAGE) latents >docs/latents-config.md
	$(BIN)/python -m reelweave.pipelines.configuration.recipes.page >docs/recipes.md
	$(BIN)/python -m tests.bench.scale --write docs/scale.md >/dev/null

# What requirements.lock says, but for what slows all down, and nothing else, every file by its hash. Then `make test` and the rest use it.
locked:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip uninstall --quiet --yes $(SLOW)
	touch .venv/.installed

# Newest versions that pyproject.toml allows, for every platform; no index is named in it. The images' locks follow it.
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate
lock: .venv/.installed
	$(COMPILE) pyproject.toml --all-extras --upgrade --output-file requirements.lock
	$(MAKE) image-locks

IMAGE = $(COMPILE) --constraints requirements.lock pyproject.toml
image-locks: .venv/.installed
	$(IMAGE) infra/locks/curate.in --extra ray --extra metrics --override infra/locks/curate-cpu.override \
	    --output-file infra/locks/curate-cpu.txt
	$(IMAGE) infra/locks/curate.in --extra curate --extra metrics --output-file infra/locks/curate.txt
	$(IMAGE) infra/locks/train.in --extra cascade --extra diffusers --extra fp8 --extra metrics --extra vae --extra wandb \
	    --output-file infra/locks/train.txt

# The newest image of that tag, by its digest. It asks the registry, so docker must reach it.
pin:
	digest=$$(docker buildx imagetools inspect python:3.11-slim --format '{{.Manifest.Digest}}') && \
	    sed -i "s|^FROM python:3.11-slim[^ ]*|FROM python:3.11-slim@$$digest|" infra/Dockerfile
	grep -qE '^FROM python:3.11-slim@sha256:[0-9a-f]{64} ' infra/Dockerfile

sbom: .venv/.installed
	$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible \
	    --output-file sbom.json

# Known vulnerabilities of what the locks hold: ends with 1 and their names. It asks a service on the internet, PyPI's unless
# AUDIT says otherwise, so it is a job of a schedule (.ci/scheduled) and not of `make test`.
LOCKS := requirements.lock $(wildcard infra/locks/*.txt)
AUDIT :=
audit: .venv/.installed
	$(BIN)/pip-audit --disable-pip --require-hashes --progress-spinner off $(addprefix --requirement ,$(LOCKS)) $(AUDIT)

# A wheel made from the archive of the sources, and their sums. Two builds of one commit give the same wheel.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: .venv/.installed
	rm -rf dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	cd dist && sha256sum reelweave-* >SHA256SUMS

clean:
	rm -rf build dist .venv .lowest .mypy_cache .ruff_cache .pytest_cache demo-out sbom.json
