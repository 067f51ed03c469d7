# Two commands do everything on a machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# Threads that wait must not spin: beside another program on two cores that made training eight times slower.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup demo test lint types rooms unit bench fuzz clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## .venv with the package and everything the tests need

demo: setup  ## the main job on embedded data; the report goes to demo-output/
	OMP_NUM_THREADS=2 $(BIN)/deepauc demo --out demo-output

test: setup lint types rooms unit  ## lint, types, import rules, tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

rooms: setup
	$(BIN)/lint-imports --no-cache

unit: setup
	$(BIN)/pytest -n 2

bench: setup  ## speed against peers, as ratios from interleaved runs
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps libauc==2.0.1
	$(BIN)/python benchmarks/run.py

# Hypothesis tests of every test file whose number of examples follows DEEPAUC_FUZZ_EXAMPLES: csv, pictures, npz, packed.
fuzz: export DEEPAUC_FUZZ_EXAMPLES ?= 100000
fuzz: setup  ## every reader against 100,000 odd inputs a test; DEEPAUC_FUZZ_EXAMPLES=2000 for fewer
	$(BIN)/pytest -n 2 -m hypothesis $$(grep -rl --include='test_*.py' DEEPAUC_FUZZ_EXAMPLES tests)

clean:  ## remove what the commands made
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache
