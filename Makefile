# Everything that a newcomer needs is a target here: `make help` lists them.
PYTHON ?= python3
PORT ?= 8080
DASHBOARDS ?= 2.60.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OTHER_RAYS := .venv-ray-2.52/.ready .venv-ray-2.55/.ready .venv-ray-2.58/.ready
LIBRARIES := .venv-ray-2.60/.ready
FRONTENDS := build/dashboards
AUDIT := .venv-audit/.ready
LOCK := .venv-audit/bin/uv pip compile --quiet --constraints constraints.txt --generate-hashes --no-header --no-annotate \
  --python-version 3.11 --python-platform linux

.DEFAULT_GOAL := help
.PHONY: help run test test-matrix check format bench test-faults test-laws test-load fuzz test-kubernetes images localimage-build localimage-collector localimage-historyserver lock audit bench-fold bench-performance bench-query bench-http bench-clients bench-collector bench-logs bench-sql bench-store docs browser clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(READY) ## record a sample session if there is none, and serve it (PORT=8080)
	@$(BIN)/rayhistory demo --port $(PORT)

test: $(READY) browser ## all tests, with real Ray and a real browser
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile || \
	  { echo "once more, one at a time: what failed beside others"; $(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

test-faults: $(READY) ## bad days: 200 seeds of faults, and 50 kills (SEEDS="17 23" or RAYHISTORY_SEED=17 lives these again)
ifeq ($(strip $(SEEDS) $(RAYHISTORY_SEED)),)
	@RAYHISTORY_KILLS=50 $(BIN)/python -m pytest tests/faults --ignore=tests/faults/test_days.py
	@$(BIN)/python tests/faults/campaign.py --figures
else
	@$(BIN)/python tests/faults/campaign.py $(SEEDS) $(RAYHISTORY_SEED)
endif

test-laws: $(READY) ## the laws of the fold, each with a hundred examples (EXAMPLES=1000 for more)
	@RAYHISTORY_LAWS=$(or $(EXAMPLES),100) $(BIN)/python -m pytest tests/unit/test_fold.py tests/unit/test_merge_laws.py

test-load: $(READY) ## the server under load for half an hour (MINUTES=2 for less), with figures
	@$(BIN)/python benchmarks/load.py --minutes $(or $(MINUTES),30)

fuzz: $(READY) ## what reads foreign bytes, fuzzed for a minute each (SECONDS=600 TARGETS="packs events" for more)
	@cd tests && $(CURDIR)/$(BIN)/python -m fuzz $(TARGETS) --seconds $(or $(SECONDS),60)

test-matrix: $(READY) $(OTHER_RAYS) $(LIBRARIES) $(FRONTENDS)/.ready browser ## other versions of Ray and its libraries too, each in its own environment
	@RAYHISTORY_TEST_RAYS=$$(echo $(foreach ray,$(OTHER_RAYS),$(CURDIR)/$(dir $(ray))bin/python) | tr ' ' :) \
	  RAYHISTORY_TEST_LIBRARIES=$(CURDIR)/$(dir $(LIBRARIES))bin/python RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT=80 \
	  $(BIN)/python -m pytest tests/e2e/test_ray_clients.py tests/e2e/test_live_against_dead.py tests/e2e/test_proxy_mode.py tests/browser/test_libraries.py
	@RAYHISTORY_TEST_DASHBOARDS=$(CURDIR)/$(FRONTENDS) $(BIN)/python -m pytest tests/browser/test_frontends.py

$(FRONTENDS)/.ready: $(READY) # dashboards of older versions, from their wheels
	@$(BIN)/rayhistory dashboards add --dashboard-dir $(FRONTENDS) 2.52.1 2.55.0
	@touch $@

$(LIBRARIES): EXTRAS := default,data,serve
.venv-ray-%/.ready: EXTRAS ?= default
.venv-ray-%/.ready: # an environment with one version of Ray
	@echo "setting up $(dir $@) (once)"
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/pip install --quiet --disable-pip-version-check 'ray[$(EXTRAS)]==$*.*'
	@touch $@

test-kubernetes: $(READY) ## on a real API server, which is built from source once: manifests, chart, guides, images, access
	@RAYHISTORY_TEST_KUBERNETES=1 $(BIN)/python -m pytest tests/kubernetes

check: $(READY) ## format, lint and types, in one command
	@$(BIN)/ruff format --check src tests benchmarks tools
	@$(BIN)/ruff check src tests benchmarks tools
	@$(BIN)/mypy

format: $(READY) ## put the code into its form
	@$(BIN)/ruff format src tests benchmarks tools
	@$(BIN)/ruff check --fix src tests benchmarks tools

images: localimage-build ## collector:v0.1.0 and historyserver:v0.1.0, with docker (DASHBOARDS="2.52.0 2.60.0" chooses frontends)

localimage-build: localimage-collector localimage-historyserver

localimage-collector localimage-historyserver: localimage-%:
	@docker build -f deploy/docker/Dockerfile --target $* --build-arg DASHBOARDS="$(DASHBOARDS)" -t $*:v0.1.0 .

lock: $(AUDIT) # versions and hashes of all that is in the images, from constraints.txt
	@$(LOCK) deploy/docker/collector.txt -o deploy/docker/locked-collector.txt
	@$(LOCK) pyproject.toml --extra oss --extra kubernetes -o deploy/docker/locked-historyserver.txt

audit: $(AUDIT) ## vulnerabilities and licences of what is in the images, and a bill of materials for each
	@.venv-audit/bin/python tools/audit.py deploy/docker/locked-*.txt --to build/sbom

$(AUDIT): constraints.txt
	@echo "setting up .venv-audit (once)"
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit cyclonedx-bom uv '.[oss,kubernetes]'
	@touch $@

bench: bench-fold bench-query ## time and memory, on generated sessions

bench-fold: $(READY) # folding sessions of growing size
	@$(BIN)/python benchmarks/fold.py

bench-performance: $(READY) # all figures of docs/performance.md (about half an hour, on a quiet machine)
	@$(BIN)/python benchmarks/performance.py

bench-query: $(READY) # requests on a large session
	@$(BIN)/python benchmarks/query.py

bench-http: $(READY) # the dashboard's pages, for many visitors at once
	@$(BIN)/python benchmarks/visitors.py

bench-clients: $(READY) # Ray's command line, on a session of a million tasks
	@$(BIN)/python benchmarks/clients.py

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
	rm -rf $(VENV) .venv-* build artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
