# `make help` lists the targets.
PYTHON ?= python3
PORT ?= 8080
DASHBOARDS ?= 2.60.0
WORKERS ?= 3
TAG ?= v0.1.0
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
OTHER_RAYS := $(foreach ray,2.52 2.53 2.55 2.57 2.58,.venv-ray-$(ray)/.ready)
LIBRARIES := .venv-ray-2.60/.ready
FRONTENDS := build/dashboards
AUDIT := .venv-audit/.ready
XDIST := --dist loadfile --no-loadscope-reorder --numprocesses
LOCK := .venv-audit/bin/uv pip compile --quiet --constraints constraints.txt --generate-hashes --no-header --no-annotate \
  --python-version 3.11 --python-platform linux

.DEFAULT_GOAL := help
.PHONY: help run free-port test test-unit test-failures bench-diagnosis test-matrix check format bench test-faults test-laws test-load test-promql test-prometheus bench-metrics fuzz test-kubernetes images localimage-build localimage-collector localimage-historyserver lock audit bench-fold bench-performance bench-query bench-lists bench-as-of bench-http bench-clients bench-collector bench-logs bench-search bench-runs bench-library bench-sql bench-store bench-freshness bench-open docs docs-site coverage release-check browser clean bench-growth

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: free-port $(INSTALLED) ## record a sample session if there is none, and serve it (PORT=8080)
	@$(BIN)/rayhistory demo --port $(PORT)

free-port: # fail before the installation, and name the variable of make
	@$(PYTHON) -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null || \
	  { echo "port $(PORT) is in use: choose another with PORT=9000 make run" >&2; exit 1; }

test-unit: $(READY) ## fast tests, one or two minutes: no Ray, no browser
	@$(BIN)/python tools/run_tests.py tests/unit -m "not slow" $(XDIST) 2

test: $(READY) browser ## all tests, with real Ray and a real browser; a flaky test fails the run (tests/flaky.txt; WORKERS=3)
	@cd tests && $(CURDIR)/$(BIN)/python -m support.store_servers.azurite >/dev/null 2>&1 &
	@$(BIN)/python tools/run_tests.py $(XDIST) $(WORKERS)

test-faults: $(READY) ## 200 fault schedules, 200 of runs and notifications, 100 of growing indexes, and 50 kills (SEEDS="17 23" or RAYHISTORY_SEED=17 repeats those)
ifeq ($(strip $(SEEDS) $(RAYHISTORY_SEED)),)
	@RAYHISTORY_KILLS=50 $(BIN)/python -m pytest tests/faults --ignore=tests/faults/test_scenarios.py --ignore=tests/faults/test_run_replicas.py --ignore=tests/faults/test_index_growth.py
	@$(BIN)/python tests/faults/run_campaign.py
	@$(BIN)/python tests/faults/growth_campaign.py
	@$(BIN)/python tests/faults/campaign.py --figures
else
	@$(BIN)/python tests/faults/campaign.py $(SEEDS) $(RAYHISTORY_SEED)
endif

test-laws: $(READY) ## laws of merge, fold and lineage, and generated requests, 100 examples each (EXAMPLES=1000 for more)
	@RAYHISTORY_LAWS=$(or $(EXAMPLES),100) $(BIN)/python -m pytest tests/unit/index/fold tests/unit/index/query/test_lineage.py \
	  tests/unit/runs tests/integration/server/openapi/test_document.py

test-load: $(READY) ## the server under load for 30 minutes (MINUTES=2 for less), with figures
	@$(BIN)/python benchmarks/load.py --minutes $(or $(MINUTES),30)

test-promql: $(READY) ## run test scripts of Prometheus' own engine (SCRIPTS=directory) and print the pass list
	@cd tests && $(CURDIR)/$(BIN)/python -m promql.promqltest $(if $(SCRIPTS),$(abspath $(SCRIPTS)),promql)

test-prometheus: $(READY) ## compare queries with a real Prometheus: all chart queries, and 500 generated ones
	@RAYHISTORY_TEST_PROMETHEUS=1 $(BIN)/python -m pytest tests/prometheus -s

test-failures: $(READY) ## plant failures on real Ray, diagnose them, and print precision and recall per code (CASES="crashes-segfault" for some)
	@cd tests && $(CURDIR)/$(BIN)/python -m failures.score $(CASES) --recordings $(CURDIR)/build/failures

test-investigations: $(READY) ## investigate the failures that test-failures recorded, as a coding agent does, and print calls and tokens
	@cd tests && $(CURDIR)/$(BIN)/python -m failures.investigations $(CASES) --recordings $(CURDIR)/build/failures

fuzz: $(READY) ## fuzz the parsers of untrusted data, a minute each (SECONDS=600 TARGETS="packs events" for more)
	@cd tests && $(CURDIR)/$(BIN)/python -m fuzz $(TARGETS) --seconds $(or $(SECONDS),60)

test-matrix: $(READY) $(OTHER_RAYS) $(LIBRARIES) $(FRONTENDS)/.ready browser ## end-to-end tests with other versions of Ray and with its libraries, each in its own environment
	@RAYHISTORY_TEST_RAYS=$$(echo $(foreach ray,$(OTHER_RAYS),$(CURDIR)/$(dir $(ray))bin/python) | tr ' ' :) \
	  RAYHISTORY_TEST_LIBRARIES=$(CURDIR)/$(dir $(LIBRARIES))bin/python RAYHISTORY_TEST_DASHBOARDS=$(CURDIR)/$(FRONTENDS) RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT=80 \
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

test-kubernetes: $(READY) ## manifests, chart, guides, images and access on a real API server, built from source once
	@RAYHISTORY_TEST_KUBERNETES=1 $(BIN)/python -m pytest tests/kubernetes

check: $(READY) docs-site ## format, lint, types, and links of the docs
	@$(BIN)/ruff format --check src tests benchmarks tools examples
	@$(BIN)/ruff check src tests benchmarks tools examples
	@$(BIN)/mypy

format: $(READY) ## format the code and fix lint
	@$(BIN)/ruff format src tests benchmarks tools examples
	@$(BIN)/ruff check --fix src tests benchmarks tools examples

coverage: $(READY) ## branch coverage of the fast tests, child processes included (COVERED="tests/unit/access" for some; HTML in build/coverage)
	@mkdir -p build/coverage && rm -f build/coverage/data*
	@$(BIN)/coverage run -m pytest $(or $(COVERED),tests/unit) -m "not slow" $(XDIST) 2; status=$$?; $(BIN)/coverage combine --quiet && \
	  $(BIN)/coverage html --quiet --directory build/coverage/html && $(BIN)/coverage report && exit $$status

release-check: check docs wheel ## what can be checked locally before a tag: generated pages, wheel, chart, versions
	@git diff --exit-code --stat docs || { echo "generated pages are not up to date: commit them" >&2; exit 1; }
	@$(BIN)/python tools/release_check.py
	@$(BIN)/helm lint --quiet --strict deploy/helm/ray-history-server --values deploy/helm/ray-history-server/ci/production.yaml
	@$(BIN)/helm package --destination dist deploy/helm/ray-history-server

images: localimage-build ## build the two images with docker (DASHBOARDS="2.52.0 2.60.0" chooses frontends, TAG=v0.1.0-2, PLATFORM=linux/amd64)

localimage-build: localimage-collector localimage-historyserver

localimage-collector localimage-historyserver: localimage-%:
	@docker build -f deploy/docker/Dockerfile --target $* --build-arg DASHBOARDS="$(DASHBOARDS)" $(if $(PLATFORM),--platform $(PLATFORM)) -t $*:$(TAG) .

lock: $(AUDIT) # lock versions and hashes of all packages in the images, from constraints.txt
	@$(LOCK) deploy/docker/collector.txt -o deploy/docker/locked-collector.txt
	@$(LOCK) pyproject.toml --extra oss --extra kubernetes -o deploy/docker/locked-historyserver.txt

audit: $(AUDIT) ## check packages of the images for vulnerabilities and licenses, and write an SBOM for each
	@.venv-audit/bin/python tools/audit.py deploy/docker/locked-*.txt --to build/sbom

$(AUDIT): constraints.txt
	@echo "setting up .venv-audit (once)"
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit cyclonedx-bom uv '.[oss,kubernetes]'
	@touch $@

bench: bench-fold bench-query ## measure time and memory on generated sessions

bench-fold: $(READY) # fold sessions of growing size
	@$(BIN)/python benchmarks/fold.py

bench-performance: $(READY) # all figures of docs/reference/performance.md (about half an hour, on a quiet machine)
	@$(BIN)/python benchmarks/performance.py

bench-query: $(READY) # requests on a large session
	@$(BIN)/python benchmarks/query.py

bench-growth: $(READY) # a hundred extensions of one index, against one fold, with plots
	@$(BIN)/python benchmarks/growth.py --plot docs/reference/growth.svg

bench-lists: $(READY) # memory and liveness of the server while it lists 200,000 event lines
	@$(BIN)/python benchmarks/long_lists.py

bench-as-of: $(READY) # moves of the slider on a session of a million tasks
	@$(BIN)/python benchmarks/as_of.py

bench-http: $(READY) # dashboard pages for many concurrent visitors
	@$(BIN)/python benchmarks/visitors.py

bench-clients: $(READY) # Ray's command line, on a session of a million tasks
	@$(BIN)/python benchmarks/clients.py

bench-collector: $(READY) # the collector under load
	@$(BIN)/python benchmarks/collector.py

bench-logs: $(READY) # log shipping
	@$(BIN)/python benchmarks/logs.py

bench-search: $(READY) # search in logs, against ripgrep in the same run (MEGABYTES=10000 for more, OPTIONS="--ids --s3 --no-scans")
	@$(BIN)/python benchmarks/search.py --megabytes $(or $(MEGABYTES),1000) $(OPTIONS)

bench-runs: $(READY) # lists of 10,000 runs in a real S3 server, compaction, and planted regressions (SESSIONS=2000 for fewer)
	@$(BIN)/python benchmarks/runs.py --sessions $(or $(SESSIONS),10000)

bench-library: $(READY) # time the Python library and the Model Context Protocol (TASKS=1000000 for more), also for a session that was indexed while it ran
	@$(BIN)/python benchmarks/library.py $(or $(TASKS),100000)
	@$(BIN)/python benchmarks/library.py $(or $(TASKS),100000) --folds $(or $(FOLDS),20)

bench-sql: $(READY) # SQL over many sessions, and of 20 visitors at once
	@$(BIN)/python benchmarks/sql.py
	@$(BIN)/python benchmarks/sql_visitors.py

bench-diagnosis: $(READY) # a diagnosis of a million tasks with 40,000 failures, and of tracebacks of 100 kB
	@$(BIN)/python benchmarks/diagnosis.py
	@$(BIN)/python benchmarks/diagnosis.py --tasks 50000 --message-bytes 100000

bench-metrics: $(READY) # the default dashboard over stored metrics
	@$(BIN)/python benchmarks/metrics.py

bench-store: $(READY) # object stores, against a real S3 server
	@$(BIN)/python benchmarks/store.py

bench-freshness: $(READY) # staleness of 200 running sessions, with 1, 2 and 4 servers
	@$(BIN)/python benchmarks/freshness.py

bench-open: $(READY) # first opens from a directory, from S3, and from S3 with latency (AGAINST=another checkout)
	@$(BIN)/python benchmarks/first_open.py $(if $(AGAINST),--against $(AGAINST))

docs: $(READY) ## generate the parts of docs/ that come from code
	@$(BIN)/python -m rayhistory.settings.reference > docs/reference/configuration.md
	@$(BIN)/python -m rayhistory.sessions.layout_reference > docs/reference/storage-layout.md
	@$(BIN)/python -m rayhistory.cli.inspect.tables_reference > docs/reference/tables.md
	@$(BIN)/python -m rayhistory.diagnosis.findings_reference > docs/reference/findings.md

docs-site: $(READY) ## build the documentation site into build/site, and fail on broken links
	@# Not --quiet: it hides warnings from --strict, too.
	@output=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) || { echo "$$output" >&2; exit 1; }

pictures: $(READY) browser ## make the pictures of the README
	@$(BIN)/python tools/pictures.py

browser: # Debian's Chromium for the browser tests, without a window where there is that package (it needs less CPU)
	@command -v chromium-headless-shell >/dev/null || \
	  { echo "installing Chromium for the browser tests (once)"; apt-get update -qq 2>/dev/null && \
	    apt-get install -y -qq chromium-headless-shell >/dev/null 2>&1; } || \
	  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get install -y -qq chromium >/dev/null || \
	    { echo "Chromium not found: install the package 'chromium' for the browser tests" >&2; exit 1; }; }

.PHONY: wheel pictures
wheel: ## build the wheel in dist/
	@$(PYTHON) -m venv build/wheel
	@build/wheel/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

$(INSTALLED): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@touch $@

$(READY): $(INSTALLED)
	@echo "setting up $(VENV) for development (once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	@touch $@

clean: ## remove environments, caches and build output
	rm -rf $(VENV) .venv-* build dist artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
