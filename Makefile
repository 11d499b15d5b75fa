# `make demo` and `make test` set up all they need: a virtual environment here, with the pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: help demo test lint format docs browser verify fuzz benchmarks results-report clean
help:
	@echo "make demo    five ways to send updates, compared: a table and two pictures in under a minute"
	@echo "make test    all tests, with every example in the docs"
	@echo "make lint    ruff, mypy --strict, the import contracts"
	@echo "make format  let ruff format and mend what it can"
	@echo "make docs    the site, in site/index.html; a warning is an error"
	@echo "make browser what the report's tests in a browser need, beside a chromium of the system's"
	@echo "make results-report  docs/results, its tables and figures, from the files in results/"
	@echo "make verify  the theory against independent solvers"
	@echo "make fuzz    the decoder against RUNS=2000000 hostile payloads"
	@echo "make benchmarks  measure again what the docs show; CIFAR10=DIR, where cifar-10-batches-py is; makes PEERS=DIR"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/joulegrad demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html; with search: $(BIN)/python -m http.server -d site"

browser: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,browser]'

RUNS ?= 2000000
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt atheris
	cd tests && ../$(BIN)/python fuzz_wire.py -runs=$(RUNS) -max_len=2048 -rss_limit_mb=8192 ../scratch/corpus

CIFAR10 ?= scratch/cifar10
PEERS ?= scratch/peers
$(PEERS)/%/ready: benchmarks/peers/requirements-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	touch $@

SIMULATE = $(BIN)/python benchmarks/simulate.py --cifar10 $(CIFAR10) --peers $(PEERS)
benchmarks: $(READY) $(PEERS)/flower/ready $(PEERS)/pfl/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python benchmarks/wire.py --cifar10 $(CIFAR10)
	$(BIN)/python benchmarks/select.py
	$(BIN)/python benchmarks/demo.py
	$(BIN)/python benchmarks/pareto.py
	$(BIN)/python benchmarks/sensitivity.py
	rm -f benchmarks/results/simulate.json
	for workload in A B-CNN B-LR; do $(SIMULATE) --workload $$workload || exit 1; done
	$(SIMULATE) --workload A --memory --turns 1 --rounds 2
	$(BIN)/python benchmarks/many_clients.py
	$(BIN)/python benchmarks/plots.py
	$(BIN)/python benchmarks/tables.py

results-report: $(READY)
	$(BIN)/python benchmarks/campaign.py

verify: $(READY)
	$(BIN)/joulegrad verify

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
