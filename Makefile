PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FUZZ_SECONDS ?= 600

.PHONY: help setup test test-federation lint types docs pictures audit fuzz reproduce bench bench-peers bench-projections clean

help:  ## List all targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-18s %s\n", $$1, $$2}'

setup: $(READY)  ## Create the virtual environment with all extras

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pcfed needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint types docs  ## Check style, types and documentation, then run all tests
	$(BIN)/python -m pytest --numprocesses 2

test-federation: $(READY)  ## Test real federations and clusters with killed processes and recorded traffic (long)
	$(BIN)/python -m pytest -m federation tests

lint: $(READY)  ## Check style, formatting and security rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src benchmarks docs examples

types: $(READY)  ## Check types
	$(BIN)/mypy

docs: $(READY)  ## Build the documentation into site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY)  ## Draw the pictures of the documentation
	for script in docs/*_pictures.py; do $(BIN)/python $$script || exit; done

audit:  ## Check the versions of constraints.txt for known vulnerabilities (without a network: the last result)
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-audit==2.10.1
	.audit/bin/python .ci/audit

fuzz:  ## Fuzz all readers of files and messages for FUZZ_SECONDS, 600 by default
	$(PYTHON) -m venv .fuzz
	.fuzz/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt atheris==3.0.0 --editable '.[flower]'
	.fuzz/bin/python -m fuzz $(FUZZ_SECONDS)

reproduce: $(READY)  ## Run the paper's experiments: figures, tables, report
	$(BIN)/pcfed reproduce

bench: $(READY)  ## Run the benchmarks of this package (benchmarks/RESULTS.md)
	$(BIN)/python -m benchmarks

bench-peers: $(READY)  ## Compare with other packages, each in a separate environment
	$(BIN)/python -m benchmarks.peers

bench-projections:  ## Compare projections with other packages, in one environment
	$(PYTHON) -m venv .bench/projections
	.bench/projections/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.bench/projections/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		POT==0.9.7.post1 proxop==1.0.6 pyproximal==0.13.0 jaxopt==0.8.5 chop-pytorch==0.0.3.1 --editable '.[fast]'
	OMP_NUM_THREADS=1 .bench/projections/bin/python -m benchmarks.projections

clean:  ## Remove the environment and all generated files
	rm -rf $(VENV) .audit .bench .fuzz .mypy_cache .pytest_cache .ruff_cache .hypothesis dist results site
