# Two commands run from a fresh clone: `make demo` and `make test`. Each makes .venv if it does not exist, or makes it
# again if its sources have changed.

PYTHON ?= python3
TORCH ?=
DEMO ?=
PYTEST ?=

BIN := .venv/bin
# With TORCH another version than that of constraints.txt is installed, and the Triton that belongs to it.
PINS := $(if $(TORCH),sed -e 's/^torch==.*/torch==$(TORCH)/' -e '/^triton==/d',cat) constraints.txt > .venv/constraints.txt
PIP := $(PINS) && $(BIN)/python tools/install.py --disable-pip-version-check -c .venv/constraints.txt
SOURCES := pyproject.toml lab/pyproject.toml constraints.txt CMakeLists.txt $(shell find csrc -type f; find src -name '*.cc' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help demo convergence test test-lab test-frameworks lint format tables docs test-neon build test-build wheels release-check clean

help:
	@echo 'make demo      train with 2 local workers, dense and with 2-bit gradients, and compare (DEMO="--compressor topk")'
	@echo 'make convergence  train every method on 2 and 4 workers, and write the table of docs/methods/convergence.md (hours on 2 cores)'
	@echo 'make test      lint, type check and run the tests of the library (PYTEST="-k ddp")'
	@echo 'make test-lab  run the tests of the laboratory: benchmarks, emulated links, the advisor, reports, their commands'
	@echo 'make test-frameworks  run the tests that need JAX, Keras, Lightning, Hugging Face, dashboards or Triton (installs them: 3 GB)'
	@echo 'make lint      run ruff and mypy, and check the pre-commit configuration'
	@echo 'make format    format the code, and let ruff fix what it can'
	@echo 'make tables    rewrite the tables of docs/ from the registry'
	@echo 'make docs      build the site in site/; warnings are errors'
	@echo 'make test-neon compare the NEON kernels with the scalar ones in an emulator'
	@echo 'make build     build an sdist and a wheel in dist/'
	@echo 'make test-build  install both in empty environments, and test them there (minutes)'
	@echo 'make wheels    build wheels for every Python version, with cibuildwheel (needs docker on Linux)'
	@echo 'make release-check TAG=v1.2.3  check that the version is the same everywhere'
	@echo 'make clean     remove everything that these commands made, including .venv'

demo: .venv/.lab
	$(BIN)/gradwire demo $(DEMO)

convergence: .venv/.lab
	$(BIN)/gradwire check convergence --json lab/src/gradwire_lab/advise/convergence.json --markdown docs/methods/convergence.md

# OMP_WAIT_POLICY lets waiting OpenMP threads sleep: every core has a worker of pytest, and a thread that spins would
# keep the core from the thread for which it waits.
test: lint
	OMP_WAIT_POLICY=passive $(BIN)/pytest -n auto --dist loadscope --doctest-modules src tests $(PYTEST)

# What the commands of the pages do is tested with the pages, in tests/docs.
test-lab: .venv/.test
	OMP_WAIT_POLICY=passive $(BIN)/pytest -n auto --dist loadscope --doctest-modules lab/src lab/tests $(PYTEST)

# Each worker takes whole files, because all tests of a file share what its ranks have trained.
test-frameworks: .venv/.frameworks
	$(BIN)/pytest -n auto --dist loadfile tests/frameworks tests/ops/triton $(PYTEST)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pre-commit validate-config

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: .venv/.test
	$(BIN)/python -m tests.house.tables

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test-neon:
	csrc/tests/neon.sh

# The wheel is built from the sdist, which shows that the sdist is complete. On Linux the wheel gets the tag of the oldest
# system on which it runs; libgomp stays outside, because torch brings it.
build: .venv/.build
	rm -rf dist build/dist
	mkdir -p dist
	$(BIN)/python -m build --outdir build/dist .
	$(BIN)/python -m build --outdir dist lab
	mv build/dist/*.tar.gz dist/
	if [ "$$(uname -s)" = Linux ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libgomp.so.1 -w dist build/dist/*.whl; \
	else mv build/dist/*.whl dist/; fi
	$(BIN)/twine check --strict dist/*

# The sdist and the wheel are installed in empty environments, which run the tests of tests/smoke and a demonstration.
test-build: build
	$(BIN)/pytest -c tests/packaging/pytest.ini tests/packaging $(PYTEST)

# Wheels for every Python version are built in the containers of cibuildwheel.
wheels: .venv/.build
	$(BIN)/cibuildwheel --output-dir dist

# The version must be the same wherever it is written, and must have a section in CHANGELOG.md.
release-check:
	$(PYTHON) tools/release.py $(TAG)

clean:
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gradwire needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.lab: .venv/.made $(SOURCES)
	$(PIP) -e . -e ./lab
	@touch $@

# The tests need the laboratory too, so the demo need not install again.
.venv/.test: .venv/.made $(SOURCES)
	$(PIP) -e '.[test]' -e ./lab
	@touch .venv/.lab $@

.venv/.frameworks: .venv/.made $(SOURCES)
	$(PIP) -e '.[test-frameworks]' -e ./lab
	@touch .venv/.lab .venv/.test $@

.venv/.docs: .venv/.made $(SOURCES)
	$(PIP) -e '.[docs]'
	@touch $@

.venv/.build: .venv/.made $(SOURCES)
	$(PIP) -e '.[build]'
	@touch $@
