# Every target makes its own .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# The tests start some two hundred processes; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

CODE := src experiments tests benchmarks examples docs/*.py conftest.py

.PHONY: demo quick test test-core test-slow mutants check lint types bench docs release clean

demo: $(STAMP)  ## train, compare and map the curvature of three blocks; opens nothing, prints where the report is
	$(BIN)/hessblocks demo --out runs/demo

quick: $(STAMP)  ## what has changed since main, in a minute and a half; ROOM=linalg: tests/linalg
	$(BIN)/python -m tests.house.quick $(if $(ROOM),--room $(ROOM))

# A worker that is replaced waits for ever when files of one test are left (pytest-xdist 3.8).
test: $(STAMP)  ## the everyday tests
	$(BIN)/python -m pytest -n 3 --dist loadfile --max-worker-restart 0

test-core: $(STAMP)  ## those of the library alone, without the studies
	$(BIN)/python -m pytest -n 3 --dist loadfile --max-worker-restart 0 tests

test-slow: $(STAMP) mutants  ## the long ones
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 -m slow

mutants: $(STAMP)  ## faults planted in a copy of the package: each must turn a test red
	$(BIN)/python -m tests.mutants

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python -m tests.house.advice
	$(BIN)/python -m experiments.tests.advice

types: $(STAMP)
	$(BIN)/mypy

check: lint  ## lint, then types beside the tests (the laws of tests/house among them)
	$(MAKE) -j2 types test

bench: $(STAMP)  ## the figures that the documentation quotes
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## the site: pages, reference, gallery, notebooks; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: $(STAMP)  ## the source archives and the wheels, in dist/
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist experiments

clean:
	test ! -e $(STAMP) || rm -rf .venv
	rm -rf runs site dist

$(STAMP): pyproject.toml experiments/pyproject.toml constraints.txt oracles.txt
	@test -e $(STAMP) || test ! -e .venv || { echo "make: .venv was made by hand and is left as it is; move it away (mv .venv my-venv) and run make again." >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hessblocks needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }
	touch -t 197001020000 $(STAMP)  # ours from here on, and out of date until all is installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]' --editable ./experiments
	$(BIN)/python -m pip install --quiet --no-deps --requirement oracles.txt
	touch $(STAMP)
