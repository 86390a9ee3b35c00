# Everything that people and CI run. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

UV_VERSION := 0.13.9
BIN := .venv/bin
# Where `setup` puts uv on a machine that has none: beside the other things that outlive a checkout.
UV_HOME := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/berth/uv-$(UV_VERSION)
export PATH := $(PATH):$(UV_HOME)/bin
CLUSTER_TOOL := PYTHONPATH=tests $(BIN)/python -m cluster
BENCH_TOOL := PYTHONPATH=tests $(BIN)/python -m bench
PYTEST := $(BIN)/pytest

# `local`: a cluster on this machine. `current`: the one that your kubeconfig points at.
CLUSTER ?= local
# The gateway's port on loopback.
PORT ?= 8088
# A file with more values for the chart; only with CLUSTER=current.
VALUES ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make the virtual environment from the lock file
	@command -v uv >/dev/null || { python3 -m venv $(UV_HOME) && $(UV_HOME)/bin/pip install --quiet uv==$(UV_VERSION); }
	@uv sync --frozen --quiet

.PHONY: gen
gen: setup ## Write every generated file
	@PYTHONPATH=tests $(BIN)/python -m generate

.PHONY: fmt
fmt: setup ## Format the code and mend what can be mended
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

.PHONY: verify
verify: setup ## Check style, types, layers, spelling, and that generated files are current
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell operator/src tests docs charts README.md CONTRIBUTING.md CHANGELOG.md Makefile
	@$(BIN)/yamllint --strict docs charts/berth/values.yaml charts/berth/Chart.yaml
	@before=$$(git status --porcelain); $(MAKE) --no-print-directory gen; \
	  after=$$(git status --porcelain); \
	  [ "$$before" = "$$after" ] || { echo "generated files were stale; commit what 'make gen' wrote:"; echo "$$after"; exit 1; }

# Tests with real programs share the machine with whatever else runs on it. What failed is said, and
# tried once more by itself; what fails again has failed.
define run-tests
@$(PYTEST) $(1) $(2) || { echo "once more, by themselves: the tests that failed"; \
  $(PYTEST) $(1) --last-failed --last-failed-no-failures=none; }
endef

.PHONY: test
test: test-unit test-api test-e2e ## Run every test

.PHONY: test-unit
test-unit: setup ## Run the tests that need no cluster
	$(call run-tests,-m "not api and not e2e",-n auto --dist worksteal)

.PHONY: test-api
test-api: setup build-api ## Run the tests against etcd and a real API server
	$(call run-tests,-m "api and not long",-n auto)

.PHONY: test-long
test-long: setup build-api ## Run the tests of the API server that take minutes each; no part of `test`
	$(call run-tests,-m "api and long",-n auto)

.PHONY: test-e2e
test-e2e: setup build-e2e ## Run the tests on a whole node with a real engine
	$(call run-tests,-m e2e,)

.PHONY: build-api
build-api: setup ## Build the programs of the api tests, once
	@$(CLUSTER_TOOL) build kube kwok helm >/dev/null

.PHONY: build-e2e
build-e2e: setup ## Build the programs and images of the e2e tests, once
	@$(CLUSTER_TOOL) build kube helm coredns pause >/dev/null
	@$(CLUSTER_TOOL) images >/dev/null

.PHONY: bench
bench: setup build-api ## Measure everything: see docs/reference/benchmarks.md
	@$(BENCH_TOOL)

.PHONY: bench-planner
bench-planner: setup build-api ## Measure the planner: growth, and placements beside kube-scheduler
	@$(BENCH_TOOL) planner

.PHONY: bench-controller
bench-controller: setup build-api ## Measure the controller: whole passes, many models, writes at rest
	@$(BENCH_TOOL) pass-growth controller

.PHONY: bench-gateway
bench-gateway: setup ## Measure the gateway beside Go's ReverseProxy
	@$(BENCH_TOOL) gateway

.PHONY: up
up: setup ## Start a cluster, install Berth, ask one question (CLUSTER=current: in yours)
	@$(CLUSTER_TOOL) quickstart --cluster $(CLUSTER) --port $(PORT) $(if $(VALUES),--values $(VALUES))

.PHONY: api-up
api-up: setup build-api ## Start an API server, controller and gateway; nodes and engines are played
	@$(CLUSTER_TOOL) api-up --port $(PORT)

.PHONY: status
status: ## Show what runs in the local cluster
	@$(CLUSTER_TOOL) status

.PHONY: down
down: ## End the local cluster and leave nothing behind
	@if [ $(CLUSTER) = current ]; then $(MAKE) --no-print-directory setup; $(CLUSTER_TOOL) down --cluster current; \
	  elif [ -d .berth ]; then $(MAKE) --no-print-directory setup; $(CLUSTER_TOOL) down; \
	  else echo "no cluster is up"; fi

.PHONY: clean
clean: down ## Remove what was made in the checkout; the cache of built programs stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
