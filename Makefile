# Everything that a newcomer needs is a target here: `make help` lists them.
PYTHON ?= python3
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OTHER_RAYS := .venv-ray-2.52/.ready .venv-ray-2.55/.ready

.DEFAULT_GOAL := help
.PHONY: help run test test-matrix check format bench test-faults bench-fold bench-performance bench-query bench-http bench-collector bench-logs bench-sql bench-store docs browser clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(READY) ## record a sample session if there is none, and serve it (PORT=8080)
	@$(BIN)/rayhistory demo --port $(PORT)

test: $(READY) browser ## all tests, with real Ray and a real browser
	@$(BIN)/python -m pytest

test-faults: $(READY) ## the collector, killed and starved again and again (RAYHISTORY_SEED=… replays a run)
	@RAYHISTORY_KILLS=50 $(BIN)/python -m pytest tests/faults

test-matrix: $(READY) $(OTHER_RAYS) ## Ray's clients of other versions too, each in its own environment
	@RAYHISTORY_TEST_RAYS=$$(echo $(foreach ray,$(OTHER_RAYS),$(CURDIR)/$(dir $(ray))bin/python) | tr ' ' :) \
	  $(BIN)/python -m pytest tests/e2e/test_ray_clients.py

.venv-ray-%/.ready: # an environment with one version of Ray
	@echo "setting up $(dir $@) (once)"
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/pip install --quiet --disable-pip-version-check 'ray[default]==$*.*'
	@touch $@

check: $(READY) ## format, lint and types, in one command
	@$(BIN)/ruff format --check src tests benchmarks
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/mypy

format: $(READY) ## put the code into its form
	@$(BIN)/ruff format src tests benchmarks
	@$(BIN)/ruff check --fix src tests benchmarks

bench: bench-fold bench-query ## time and memory, on generated sessions

bench-fold: $(READY) # folding sessions of growing size
	@$(BIN)/python benchmarks/fold.py

bench-performance: $(READY) # all figures of docs/performance.md (about a quarter of an hour, on a quiet machine)
	@$(BIN)/python benchmarks/performance.py

bench-query: $(READY) # requests on a large session
	@$(BIN)/python benchmarks/query.py

bench-http: $(READY) # the dashboard's pages, for many visitors at once
	@$(BIN)/python benchmarks/visitors.py

bench-collector: $(READY) # the collector under load
	@$(BIN)/python benchmarks/collector.py

bench-logs: $(READY) # shipping log files
	@$(BIN)/python benchmarks/logs.py

bench-sql: $(READY) # SQL over many sessions
	@$(BIN)/python benchmarks/sql.py

bench-store: $(READY) # object stores, against a real S3 server
	@$(BIN)/python benchmarks/store.py

docs: $(READY) ## the parts of docs/ that are made from code
	@$(BIN)/python -m rayhistory.settings_doc > docs/configuration.md
	@$(BIN)/python -m rayhistory.layout.doc > docs/storage-layout.md
	@$(BIN)/python -m rayhistory.cli.tables_doc > docs/tables.md

browser: # Debian's Chromium, for the browser tests
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { echo "installing chromium for the browser tests"; apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  { echo "the browser tests need Chromium: install the package 'chromium'" >&2; exit 1; }

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	@touch $@

clean: ## remove what was set up here
	rm -rf $(VENV) .venv-ray-* build artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
