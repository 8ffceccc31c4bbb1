# `make demo` and `make test` set up all they need: python3 (3.10+) with pip, make and git are enough.
# Everything installed lies in .venv; stamp files there make a second call quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

# Hundreds of tests start processes: each would compile all modules anew where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test fuzz gpu gpu-rehearsal lint lint-files docs screenshots clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed  ## the main job on this machine, no GPU needed; writes out/demo/
	@$(BIN)/shardtoll demo

# Tests wait for ranks and browsers: with a worker a core, three tenths of two cores were idle.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 2))(0)) + 1))')

# In their own order, live tests come first and many small files last, so that all workers end together; behind them
# come those that run alone. mypy has one thread: beside the tests it fills a core that waits, and what it found is
# printed last.
test: lint-files $(VENV)/.browser  ## lint and every test; WORKERS=N so many at a time
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & mypy=$$!; trap 'kill $$mypy 2>/dev/null' EXIT INT TERM; \
	  $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	  wait $$mypy; types=$$?; cat $(VENV)/mypy.log; [ $$tests = 0 ] && [ $$types = 0 ]

FUZZ ?= --inputs 100000
# Tests that run a few analyses alone; here each of their reports is held to the whole one.
IN_PART := tests/unit/analyzers $(patsubst %,tests/live/test_%.py,backends capture ddp duplicated equal \
  groups habits mutations needless remedies sound stalls truth)

fuzz: $(VENV)/.installed-test  ## damaged input at every seam, with another seed each day; FUZZ='--inputs N --seed S'
	@$(BIN)/python -m tests.fuzz $(FUZZ) -o out/fuzz.json
	@SHARDTOLL_FUZZ=5000 SHARDTOLL_FUZZ_SEED=$$(date +%j) \
	  $(BIN)/python -m pytest tests/unit/profiler/traces/file/test_fuzz.py
	@SHARDTOLL_WHOLE=1 $(BIN)/python -m pytest --numprocesses 2 $(IN_PART)
	@SHARDTOLL_WHOLE=1 $(BIN)/python -m pytest tests/unit/cli/test_hostile_folders.py tests/unit/test_hostile_hangs.py

# On the Python that is there, with its torch: a card's machine often has no network, and no other build fits it.
gpu:  ## all that one CUDA card can show, in under 9 minutes; writes $OUT, else out/gpu
	@$(PYTHON) benchmarks/gpu/run.py

gpu-rehearsal: $(VENV)/.installed-test  ## the same plan on the CPU with tiny sizes; writes $OUT, else out/gpu-rehearsal
	@OUT="$${OUT:-out/gpu-rehearsal}" $(BIN)/python benchmarks/gpu/run.py --rehearse

lint: lint-files  ## ruff, mypy strict, biome for JavaScript and CSS, and the import contracts
	@$(BIN)/mypy

lint-files: $(VENV)/.installed-test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@[ ! -x $(BIN)/biome ] || $(BIN)/biome lint --error-on-warnings dashboards
	@$(BIN)/lint-imports --no-logo

screenshots: $(VENV)/.browser  ## docs/images, of every view, from out/demo (which is made where it is missing)
	@$(BIN)/python docs/screenshots.py out/demo

docs: $(VENV)/.installed-docs  ## docs/ as a site in out/site, which opens from disk
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "the site: out/site/index.html"

clean:  ## remove what make, builds and demos have written
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info

# Debian's python3 comes without ensurepip; then the pip that is there installs a pip into the venv.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: $(PYTHON) is missing or older than 3.10: name another, make PYTHON=python3.12" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install -qq --disable-pip-version-check pip; } || { \
	  rm -rf $(VENV); \
	  echo "make: $(PYTHON) cannot make a virtual environment: install python3-venv or pip 22.3 or newer" >&2; \
	  exit 1; }
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.made
	@echo "installing shardtoll into $(VENV) (the first time takes minutes)"
	@$(PIP) --editable '.[serve]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(VENV)/.made
	@echo "installing shardtoll with its test tools into $(VENV) (the first time takes minutes)"
	@$(PIP) --editable '.[test,lint]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt $(VENV)/.made
	@echo "installing shardtoll with MkDocs into $(VENV)"
	@$(PIP) --editable '.[serve,docs]'
	@touch $@ $(VENV)/.installed

# Tests that drive a browser skip themselves where there is none, so getting one may fail.
$(VENV)/.browser: $(VENV)/.installed-test
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium" && \
	    { timeout 120 apt-get update -qq; \
	      DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq chromium; } >/dev/null 2>&1; } || \
	  echo "no chromium here: the browser tests will be skipped"
	@touch $@
