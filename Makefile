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

# kubectl on PATH, else the local cluster's.
KUBECTL ?= $(shell command -v kubectl || echo $(BIN)/skysail kubectl)
CONTAINER_TOOL ?= docker
IMG ?=
export CONTAINER_TOOL IMG PLATFORMS

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
	$(BIN)/python -m scripts.run_tests -n 3 --dist loadfile --no-loadscope-reorder --durations 30 -m "not on_demand" tests

.PHONY: test-security
test-security: build ## attacks on a cluster by a tenant, pods and models; prints attempts tried and held
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile -m "not on_demand" tests/security

.PHONY: test-security-all
test-security-all: build ## the same with every row of every table; a quarter of an hour
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile tests/security

.PHONY: test-crashes
test-crashes: build ## tests/fault_injection: a crash at every effect, also of budgets and gangs, simulated and real; more than an hour
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/fault_injection

.PHONY: test-launches
test-launches: build ## the part of test-crashes about pods at clouds; SKYSAIL_CRASH_POINTS=3/7 takes a sample
	$(BIN)/python -m scripts.run_tests -n 3 --dist loadfile -m "not on_demand" tests/fault_injection/test_clouds_*.py tests/fault_injection/test_offload_*.py

.PHONY: test-modal-crashes
test-modal-crashes: build ## kill the operator at each RPC to the stand-in of Modal, on the real control plane; about an hour
	$(BIN)/python -m scripts.run_tests tests/fault_injection/test_clouds_modal.py

.PHONY: test-races
test-races: build ## 1,000 pods that the scheduler and the operator want to bind at the same time
	SKYSAIL_RACES=1000 $(BIN)/python -m scripts.run_tests tests/e2e/test_offload_races.py

.PHONY: test-frameworks
test-frameworks: build ## PyTorch in pods, and one example per framework; downloads gigabytes the first time
	$(BIN)/python -m scripts.run_tests -m "not on_demand" tests/frameworks

.PHONY: test-frameworks-all
test-frameworks-all: build ## the same with TensorFlow, Hugging Face and killed workers
	$(BIN)/python -m scripts.run_tests tests/frameworks

.PHONY: test-examples
test-examples: build ## every example of examples/README.md, with what it prints; downloads gigabytes the first time
	$(BIN)/python -m scripts.run_tests --durations 20 tests/frameworks/test_examples.py

.PHONY: test-gangs
test-gangs: build ## the real Kueue and Volcano beside the operator; builds them from Go modules the first time
	$(BIN)/python -m scripts.run_tests -m "not on_demand" tests/gang_schedulers

.PHONY: test-gangs-all
test-gangs-all: build ## the same with the real Kubeflow training operator, whose build takes minutes
	$(BIN)/python -m scripts.run_tests tests/gang_schedulers

.PHONY: test-modal-gangs
test-modal-gangs: build ## every fault and crash of a gang at Modal's stand-in, and a PyTorch training there
	$(BIN)/python -m scripts.run_tests tests/conformance/test_modal_gangs.py "tests/e2e/test_modal.py" -k "gang or ranks"

.PHONY: test-sdk
test-sdk: build ## the tests of Modal with the newest 1.x of its SDK; downloads it
	$(BIN)/uv pip install -q --upgrade --target build/newest-sdk 'modal<2'
	PYTHONPATH=build/newest-sdk $(BIN)/python -m pytest -q tests/conformance -k modal

.PHONY: test-chart
test-chart: build ## the chart with the real Helm: lint, render, install, every command of the five documents; builds Helm the first time
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile --durations 10 -m "not on_demand" tests/chart

.PHONY: test-chart-all
test-chart-all: build ## the same with upgrades, CRDs of others, and every preset under its own names; ten minutes
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile tests/chart

.PHONY: test-versions
test-versions: $(READY) ## the e2e smoke tests on the oldest supported Kubernetes; builds it from Go modules the first time
	$(BIN)/python -m scripts.oldest_kubernetes

.PHONY: test-soak
test-soak: $(READY) ## answers of gigabytes and of minutes, and 1,000 open streams, through the bridge
	$(BIN)/python -m scripts.run_tests tests/soak

.PHONY: rights
rights: $(READY) ## which rights of Skysail the last test runs used; after make test and the other stages
	$(BIN)/python -m scripts.rights

.PHONY: promises
promises: $(READY) ## whether every test that shows a promise ran and passed; after make test and the other stages
	$(BIN)/python -m scripts.promises --ran

.PHONY: check
check: $(READY) ## style, types, import order, generated files, documentation site, promises; below a minute
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m scripts.generate --check
	$(BIN)/python -m scripts.site
	$(BIN)/python -m scripts.promises

.PHONY: site
site: $(READY) ## build the documentation site into build/site; every link is checked
	$(BIN)/python -m scripts.site

.PHONY: record
record: build ## record a terminal with the first examples: docs/pictures/first-steps.cast and .svg
	$(BIN)/python -m scripts.record

.PHONY: bench
bench: $(READY) ## measure, beside Kopf doing the same work
	$(BIN)/uv pip install $(OURS) -q --require-hashes -r requirements-bench.lock
	$(BIN)/python -m bench

.PHONY: format
format: $(READY) ## format the code, fix what ruff can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: generate
generate: $(READY) ## write the generated files: CRDs, RBAC roles, rendered charts, reference pages
	$(BIN)/python -m scripts.generate

.PHONY: manifests
manifests: generate ## the same as generate

.PHONY: lint
lint: $(READY) ## style and types
	$(BIN)/ruff check
	$(BIN)/mypy

.PHONY: run
run: $(READY) ## run the operator on this machine, for the cluster of your kubeconfig
	$(BIN)/skysail run

.PHONY: install
install: $(READY) ## install the CRDs into the cluster of your kubeconfig
	$(BIN)/skysail crds apply

.PHONY: uninstall
uninstall: $(READY) ## delete the CRDs, and with them all objects of Skysail
	$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy
deploy: $(READY) ## install Skysail into the cluster of your kubeconfig, with the image IMG
	$(BIN)/python -m scripts.installer | $(KUBECTL) apply -f -
	$(KUBECTL) wait --for=condition=Established crd/offloadpolicies.skysail.dev --timeout=60s
	$(KUBECTL) apply -f dist/default-policy.yaml

.PHONY: undeploy
undeploy: $(READY) ## end everything that costs money, then remove Skysail and its CRDs
	$(BIN)/skysail drain --yes
	$(KUBECTL) delete --ignore-not-found deployment/skysail -n skysail-system
	$(BIN)/skysail clean-up
	$(KUBECTL) delete --ignore-not-found -f dist/install.yaml

.PHONY: build-installer
build-installer: $(READY) ## write dist/install.yaml with the image IMG
	$(BIN)/python -m scripts.installer --write

.PHONY: test-e2e
test-e2e: build ## all e2e tests, also those that `make test` leaves out
	$(BIN)/python -m scripts.run_tests -n 2 --dist loadfile tests/e2e

.PHONY: cleanup-test-e2e
cleanup-test-e2e: ## nothing to do: tests remove their clusters themselves
	@echo "Tests remove their clusters themselves. \`make kind-delete\` deletes the kind cluster."

.PHONY: image
image: $(READY) ## build our images as OCI layouts into build/images, without a container engine (IMAGE=fastapi-pytorch: one of them)
	$(BIN)/python -m scripts.build_image $(IMAGE)

.PHONY: lock-image
lock-image: $(READY) ## lock the newest Debian packages of our images
	$(BIN)/python -m scripts.build_image --lock

.PHONY: pin-images
pin-images: $(READY) ## write the digests of base images into the Dockerfiles, where a registry can be reached
	$(BIN)/python -m scripts.pin_images

.PHONY: docker-build docker-push docker-buildx kind-create kind-load kind-delete
docker-build docker-push docker-buildx kind-create kind-load kind-delete: $(READY)
	@$(BIN)/python -m scripts.container_tasks $@

.PHONY: kind-test-e2e
kind-test-e2e: $(READY) ## the path of the Modal Operator on kind: cluster, image, installation, GPU pod
	@$(BIN)/python -m scripts.container_tasks test-e2e

.PHONY: controller-gen kustomize setup-envtest golangci-lint
controller-gen: $(READY) ## tools of other operators: ready, or replaced by ours
	@echo "CRDs and roles are generated by scripts/generate.py: run \`make manifests\`."
kustomize:
	@echo "kubectl has kustomize: run \`kubectl apply -k config/default\`."
setup-envtest: build
	@echo "The control plane for tests is built: run \`make test\`."
golangci-lint: $(READY)
	@echo "ruff and mypy are ready: run \`make lint\`."

.PHONY: lock
lock: $(READY) ## resolve the dependencies again, with hashes
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml $(TESTED) --group dev -o requirements-dev.lock
	$(LOCK) pyproject.toml $(TESTED) --group dev --group bench -o requirements-bench.lock
	$(BIN)/python -m scripts.extra_requirements fetch | $(LOCK) -c requirements-dev.lock - -o inference/fetch.lock
	$(BIN)/python -m scripts.extra_requirements fastapi-onnx | $(LOCK) -c requirements-dev.lock - -o inference/fastapi-onnx.lock
	$(BIN)/python -m scripts.extra_requirements fastapi-pytorch | $(LOCK) -c requirements-dev.lock - -o inference/fastapi-pytorch.lock

$(READY): requirements-dev.lock pyproject.toml scripts/bootstrap
	scripts/bootstrap "$(PYTHON)" $(VENV)
	@touch $@
