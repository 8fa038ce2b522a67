# Needs python3 (3.11 to 3.13) and make. Everything else is installed into .venv, or built into your cache, by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Explicit, because uv would prefer a virtual environment that is active in the user's shell.
OURS := --python $(BIN)/python
LOCK := $(BIN)/uv pip compile $(OURS) -q --universal --generate-hashes --custom-compile-command "make lock"
# Programs that run in pods are tested here as well, unless they need PyTorch.
TESTED := --extra fetch --extra fastapi-onnx

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: up
up: $(READY) ## start a Kubernetes cluster with Skysail on this machine
	$(BIN)/skysail up

.PHONY: down
down: $(READY) ## stop the cluster and keep its data (.venv/bin/skysail down --purge deletes them)
	$(BIN)/skysail down

.PHONY: build
build: $(READY) ## build the control plane into your cache, once
	$(BIN)/skysail build

.PHONY: test
test: check build ## make check, then unit, contract, conformance, simulation and e2e tests
	$(BIN)/python -m scripts.run_tests -n 3 --dist loadfile --no-loadscope-reorder --durations 30

.PHONY: test-security
test-security: build ## attacks on a cluster by a tenant, pods and models; prints attempts tried and held
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile -m "not on_demand" tests/security

.PHONY: test-security-all
test-security-all: build ## the same with every row of every table; a quarter of an hour
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile tests/security

.PHONY: test-crashes
test-crashes: build ## crash at every effect, simulated and on the real control plane; more than an hour on two cores
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/fault_injection

.PHONY: test-launches
test-launches: build ## the part of test-crashes about pods at clouds; SKYSAIL_CRASH_POINTS=3/7 takes a sample
	$(BIN)/python -m scripts.run_tests -n 3 --dist loadfile tests/fault_injection/test_clouds_*.py tests/fault_injection/test_offload_*.py

.PHONY: test-races
test-races: build ## 1,000 pods that the scheduler and the operator want to bind at the same time
	SKYSAIL_RACES=1000 $(BIN)/python -m scripts.run_tests tests/e2e/test_offload_races.py

.PHONY: test-frameworks
test-frameworks: build ## PyTorch in pods; downloads gigabytes the first time
	$(BIN)/python -m scripts.run_tests -m "not on_demand" tests/frameworks

.PHONY: test-frameworks-all
test-frameworks-all: build ## the same with TensorFlow, Hugging Face and killed workers
	$(BIN)/python -m scripts.run_tests tests/frameworks

.PHONY: test-gangs
test-gangs: build ## the real Kueue and Volcano beside the operator; builds them from Go modules the first time
	$(BIN)/python -m scripts.run_tests tests/gang_schedulers

.PHONY: check
check: $(READY) ## style, types, import order, generated files, promises; below a minute
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.generate --check
	$(BIN)/python -m scripts.promises

.PHONY: bench
bench: $(READY) ## measure, beside Kopf doing the same work
	$(BIN)/uv pip install $(OURS) -q --require-hashes -r requirements-bench.lock
	$(BIN)/python -m bench

.PHONY: format
format: $(READY) ## format the code, fix what ruff can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: generate
generate: $(READY) ## write the generated files: CRDs, RBAC roles, reference pages
	$(BIN)/python -m scripts.generate

.PHONY: lock
lock: $(READY) ## resolve the dependencies again, with hashes
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml $(TESTED) --group dev -o requirements-dev.lock
	$(LOCK) pyproject.toml $(TESTED) --group dev --group bench -o requirements-bench.lock
	$(BIN)/python -m scripts.extra_requirements fastapi-onnx | $(LOCK) -c requirements-dev.lock - -o inference/fastapi-onnx.lock
	$(BIN)/python -m scripts.extra_requirements fastapi-pytorch | $(LOCK) -c requirements-dev.lock - -o inference/fastapi-pytorch.lock

$(READY): requirements-dev.lock pyproject.toml scripts/bootstrap
	scripts/bootstrap "$(PYTHON)" $(VENV)
	@touch $@
