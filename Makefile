PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup test test-federation lint types docs pictures audit reproduce bench bench-peers bench-projections clean

help:  ## Show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-18s %s\n", $$1, $$2}'

setup: $(READY)  ## Make the virtual environment with everything we test with

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pcfed needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint types docs  ## Set up, then check style, types and all tests
	$(BIN)/python -m pytest --numprocesses 2

test-federation: $(READY)  ## Kill the processes of real federations at the worst moments, and listen in (long)
	$(BIN)/python -m pytest -m federation tests/federation

lint: $(READY)  ## Check style, formatting and what is known to be unsafe
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src benchmarks docs examples

types: $(READY)  ## Check types
	$(BIN)/mypy

docs: $(READY)  ## Build the documentation into site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY)  ## Draw the pictures of the documentation again
	for script in docs/*_pictures.py; do $(BIN)/python $$script || exit; done

audit: $(READY)  ## Look the installed versions up in the list of known vulnerabilities (needs PyPI)
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(BIN)/python -m pip freeze --exclude-editable > .audit/installed.txt
	.audit/bin/pip-audit --strict --no-deps --disable-pip --requirement .audit/installed.txt

reproduce: $(READY)  ## Set up, then run the paper's experiments: figures, tables, report
	$(BIN)/pcfed reproduce

bench: $(READY)  ## Measure the package against what the hardware allows (benchmarks/RESULTS.md)
	$(BIN)/python -m benchmarks

bench-peers: $(READY)  ## Measure it against other packages, each in an environment of its own
	$(BIN)/python -m benchmarks.peers

bench-projections:  ## Measure projections against other packages, in one environment
	$(PYTHON) -m venv .bench/projections
	.bench/projections/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.bench/projections/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		POT==0.9.7.post1 proxop==1.0.6 pyproximal==0.13.0 jaxopt==0.8.5 chop-pytorch==0.0.3.1 --editable '.[fast]'
	OMP_NUM_THREADS=1 .bench/projections/bin/python -m benchmarks.projections

clean:  ## Remove the environment and what the tools leave behind
	rm -rf $(VENV) .audit .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis dist results site
