# The commands of the README. Each creates .venv when it is needed; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow engines test-engines test-engines-all check lint clean

# torch is pinned to its CPU build: the plain newest release pulls in several GB of CUDA packages.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("fedstrata needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	touch $@

$(VENV)/installed-engines: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet --editable '.[test,nvflare,ray]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/fedstrata run

# A process a core, each with one thread: small tensors gain nothing from more.
test: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not engines' --numprocesses auto --dist worksteal

test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -m 'slow and not engines' --numprocesses auto --dist worksteal

engines: $(VENV)/installed-engines

# In one process: all of its runs are on one cluster, or in one federation. All of it takes an hour.
test-engines: $(VENV)/installed-engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'engines and not slow' tests/engines

test-engines-all: $(VENV)/installed-engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m engines tests/engines

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
