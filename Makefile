# The commands of the README. Each creates .venv when it is needed; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
LOCK := requirements.lock
# In the versions that were tested, and in no others.
INSTALL = $(BIN)/python -m pip install --quiet --constraint $(LOCK)

# Compiled modules are kept, whatever the environment says: or each process of the tests compiles them all again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs doctest test test-slow test-weekly test-versions test-lowest test-newest test-python \
	engines test-engines test-engines-all mutations check lint lock wheel clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("fedstrata needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# torch by itself: of one version pip prefers the CPU build where it finds one (CONTRIBUTING.md), and what follows is content with it.
$(VENV)/installed: pyproject.toml $(LOCK) | $(BIN)/python
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(INSTALL) --editable '.[test,bench]'
	touch $@

$(VENV)/installed-engines: $(VENV)/installed-test
	$(INSTALL) --editable '.[test,nvflare,ray]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) --editable '.[docs]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/fedstrata run

# Whatever a page links to that is not there, and a page that the navigation lacks, is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# With one thread a process: small tensors gain nothing from more. And without torch's compiler, which nothing here uses: bitsandbytes,
# which peft imports wherever it is installed, begins with three seconds of loading it.
# In memory, where it has 4 GB for files: on a disk, deleting what thousands of tests leave takes a minute.
MEMORY = $(shell [ "$$(df --output=avail /dev/shm | tail --lines 1)" -gt 4000000 ] 2> /dev/null && echo TMPDIR=/dev/shm)
PYTEST = $(MEMORY) OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 $(BIN)/python -m pytest

# A process a core.
FAST := -m 'not slow and not engines' --numprocesses auto --dist worksteal

test: $(VENV)/installed-test
	$(PYTEST) $(FAST)

# A module whose extra is not installed has no doctests here.
doctest: $(VENV)/installed-test
	$(PYTEST) --doctest-modules --doctest-ignore-import-errors src

test-slow: $(VENV)/installed-test
	$(PYTEST) -m 'slow and not engines and not weekly' --numprocesses auto --dist worksteal

# The dearest of them, which a landing does not wait for, and property tests with eight times the examples: most of an hour.
test-weekly: $(VENV)/installed-test
	$(PYTEST) -m 'weekly or hypothesis' --hypothesis-profile weekly --numprocesses auto --dist worksteal

# The fast tests in the lowest versions that pyproject.toml allows, and in the newest: once a week, each in an environment of its own.
# uv leaves the tested torch, which pip has installed: others bring gigabytes of CUDA.
test-versions: test-lowest test-newest

test-lowest: override VENV := $(VENV)-lowest
test-lowest: RESOLUTION := lowest-direct
test-newest: override VENV := $(VENV)-newest
test-newest: RESOLUTION := highest
test-lowest test-newest:
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) torch 'uv>=0.9,<1'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --resolution $(RESOLUTION) --editable '.[test,bench]'
	$(PYTEST) $(FAST)

# On another interpreter: `make test-python PYTHON=python3.12` imports every module, reads every format, and makes one run.
test-python: override VENV := $(VENV)-$(notdir $(PYTHON))
test-python:
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable '.[test]'
	$(BIN)/python scripts/import_modules.py
	$(PYTEST) -m 'not slow and not engines' tests/data/readers
	$(BIN)/fedstrata run data.synthetic.notes=24 federation.rounds=1 --out $(VENV)/run

engines: $(VENV)/installed-engines

# In one process: all of its runs are on one cluster, or in one federation. All of it takes an hour.
test-engines: $(VENV)/installed-engines
	$(PYTEST) -m 'engines and not slow' tests/engines

test-engines-all: $(VENV)/installed-engines
	$(PYTEST) -m engines tests/engines

# Whether tests see a mistake in what they guard; once a week, and before a release: more than an hour. All scripts run, whatever one
# finds.
mutations: $(VENV)/installed-test
	status=0; for script in privacy/mutations privacy/secure_sum_mutations privacy/budget_mutations privacy/joint_noise_mutations \
		reliability/suite_mutations; do $(BIN)/python benchmarks/$$script.py || status=1; done; exit $$status

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint doctest test

# Every package that the targets above install, in the newest version that pyproject.toml allows.
lock: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'uv>=0.9,<1'
	$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --python-platform linux --custom-compile-command 'make lock' \
		--annotation-style line --extra test --extra bench --extra nvflare --extra ray --extra docs --output-file $(LOCK) pyproject.toml

wheel: $(VENV)/installed-test
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) $(VENV)-* site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
