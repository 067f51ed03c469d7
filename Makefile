# Two commands do everything on a machine with Python 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
# Threads that wait must not spin: beside another program on two cores that made training eight times slower.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup demo studies test lint types rooms unit figures bench fuzz chaos mishaps ids signals decoding soak docs release-check clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## .venv with the package and everything the tests need

demo: setup  ## the main job on embedded data; the report goes to demo-output/
	OMP_NUM_THREADS=2 $(BIN)/deepauc demo --out demo-output

studies: setup  ## the studies that experiments/ declares
	@for file in paper best plan medical objectives pretrained; do $(BIN)/deepauc study list experiments/$$file.py || exit; done

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

figures: setup  ## results/*.md and summary.json from the records, and the figures of README and docs from these
	$(BIN)/python -m experiments.figures

bench: setup  ## speed against peers, as ratios from interleaved runs
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python -m pip install --quiet --no-deps libauc==2.0.1
	$(BIN)/python benchmarks/run.py

fuzz: setup  ## 100,000 odd inputs for each reader, twice; DEEPAUC_FUZZ_EXAMPLES=2000 for fewer
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[fuzz]'
	$(BIN)/python reliability/fuzz.py --examples $${DEEPAUC_FUZZ_EXAMPLES:-100000} && $(BIN)/python reliability/summary.py

chaos: setup  ## kills, full disks, damaged files, each compared with the run left alone
	$(BIN)/python reliability/chaos.py && $(BIN)/python reliability/summary.py

mishaps: setup  ## outputs that are no plain files, extreme numbers, files of one run in another's folder
	$(BIN)/python reliability/mishaps.py && $(BIN)/python reliability/summary.py

# Names in Unicode's many forms; Ctrl-C during the import and pipes nobody reads; pictures with extreme pixels.
ids signals decoding: setup
	$(BIN)/python reliability/$@.py && $(BIN)/python reliability/summary.py

soak: setup  ## 100,000 PESG steps, three times
	$(BIN)/python reliability/soak.py && $(BIN)/python reliability/summary.py

docs: setup  ## the documentation as html, warnings as errors; in build/site/
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict --site-dir build/site

# Nothing of .venv is used: what is not in the wheel, or not among its dependencies, is missing here too.
RELEASE := build/release
release-check:  ## sdist and wheel; the wheel into a clean environment; its demo, run outside the repository
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/builder
	$(RELEASE)/builder/bin/python -m pip install --quiet build
	$(RELEASE)/builder/bin/python -m build --outdir $(RELEASE)/dist .
	@# The package and nothing beside it: no experiments, results or tests.
	! $(PYTHON) -m zipfile --list $(RELEASE)/dist/*.whl | tail -n +2 | grep -v '^deepauc[/_-]'
	$(PYTHON) -m venv $(RELEASE)/env
	$(RELEASE)/env/bin/python -m pip install --quiet -c constraints.txt $(RELEASE)/dist/*.whl
	$(RELEASE)/env/bin/python -m pip check
	cd "$$(mktemp -d)" && "$(CURDIR)/$(RELEASE)/env/bin/deepauc" demo --quiet --out demo \
		&& test -s demo/demo.md && test -s demo/first-run/report.html && pwd

clean:  ## remove what the commands made
	rm -rf $(VENV) build demo-output .pytest_cache .mypy_cache .ruff_cache
