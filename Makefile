# The whole interface a newcomer needs. `make` lists the targets.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PYTEST := tests/support/pytest_in_memory -n auto --dist loadscope --no-loadscope-reorder --durations 25
export PATH := $(abspath $(BIN)):$(PATH)
export DO_NOT_TRACK := true
export DVC_NO_ANALYTICS := 1
unexport PYTHONDONTWRITEBYTECODE  # a module is compiled when it is first imported, not in every process

.DEFAULT_GOAL := help
.PHONY: help setup run test tested long check lint types compiled format up down peers kserve atropos bench soak faults mutations calibration manipulations release clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/installed  ## install everything into .venv, exactly as pinned

# uv installs what pip would, but for what pyproject.toml leaves out, in a third of the time. It does not read pip's
# settings, so they are handed over; where it is not to be had or cannot install, pip does.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv && \
	UV_FIND_LINKS="$${PIP_FIND_LINKS:-$$($(BIN)/pip config get global.find-links 2>/dev/null)}" \
	UV_DEFAULT_INDEX="$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null)}" \
	UV_INDEX="$${PIP_EXTRA_INDEX_URL:-$$($(BIN)/pip config get global.extra-index-url 2>/dev/null)}" \
	UV_INDEX_STRATEGY=unsafe-best-match \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev]' || \
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BIN)/loomrl:
	$(MAKE) setup

run: setup  ## take the CartPole policy through its whole life cycle
	loomrl run configs/cartpole.yaml

test: setup  ## everything that must hold; ROOM=serving/api: the tests of that room; CHANGED=1: of what differs from HEAD
	@$(MAKE) --no-print-directory --jobs 2 lint compiled
	@$(MAKE) --no-print-directory --jobs 2 types tested

tested: | $(BIN)/loomrl
	@files="$(if $(ROOM),tests/$(ROOM))"; \
	if [ -n "$(CHANGED)" ]; then \
	  files=$$(python tests/support/changed_tests.py) || exit; \
	  [ -n "$$files" ] || { echo "no test imports what has changed"; exit 0; }; \
	fi; \
	$(PYTEST) -m "not long" $$files || { code=$$?; [ -n "$$files" ] && [ $$code -eq 5 ] || exit $$code; }

long: | $(BIN)/loomrl  ## the tests that `make test` leaves out because they take long, or those of a ROOM
	$(PYTEST) -m long --keep-outcomes benchmarks/results/long.json $(if $(ROOM),tests/$(ROOM))

check: lint types  ## format, lint, strict types, import contracts

lint: | $(BIN)/loomrl
	ruff format --check .
	ruff check .
	lint-imports
	python tests/support/house_rules.py

types: | $(BIN)/loomrl  # a minute of one core: tests go on beside it
	mypy

compiled: | $(BIN)/loomrl  # what tests import, once: each worker would compile all of it, while checks leave a core alone
	@pytest --collect-only -qq -m "not long" $(if $(ROOM),tests/$(ROOM)) >/dev/null 2>&1 || true

format: | $(BIN)/loomrl  ## put the code into the project's format
	ruff format .
	ruff check --fix .

up: | $(BIN)/loomrl  ## start Prefect, MLflow and the policy server on loopback
	deploy/local/up

down:  ## stop what `make up` started
	deploy/local/down

peers: .venv-peers/installed .venv-mlserver/installed  ## install what LoomRL is compared with, in environments of their own

.venv-peers/installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

.venv-mlserver/installed: benchmarks/served/requirements.txt
	$(PYTHON) -m venv .venv-mlserver
	.venv-mlserver/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

kserve: .venv-kserve/installed  ## install the KServe SDK, in an environment of its own: a test drives it

.venv-kserve/installed: tests/support/kserve_requirements.txt
	$(PYTHON) -m venv .venv-kserve
	.venv-kserve/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

atropos: .venv-atropos/installed  ## install the reference of the Trajectory API and two environments for it, apart from ours: tests use them

.venv-atropos/installed: benchmarks/atropos/requirements.txt
	$(PYTHON) -m venv .venv-atropos
	.venv-atropos/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	rm -rf .venv-atropos/source
	.venv-atropos/bin/pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --no-binary atroposlib --constraint $< --dest .venv-atropos/source atroposlib
	tar --extract --gzip --file .venv-atropos/source/atroposlib-*.tar.gz --directory .venv-atropos/source \
	  --strip-components 1 --wildcards '*/environments/reasoning_gym_environment'
	rm .venv-atropos/source/atroposlib-*.tar.gz
	touch $@

bench: peers atropos | $(BIN)/loomrl  ## measure speed and learning beside the peers, replay, serving, life cycles; takes hours
	python benchmarks/compare.py speed
	python benchmarks/compare.py learn
	python benchmarks/compare.py render
	python benchmarks/learning.py
	python -m benchmarks.episodes --show
	python benchmarks/stepping.py
	python benchmarks/replay.py
	python benchmarks/sealed_replay.py
	python benchmarks/memory.py
	python benchmarks/device.py
	python benchmarks/serving.py
	python benchmarks/serving_shadow.py
	python -m benchmarks.hostile
	python benchmarks/lifecycles.py
	python benchmarks/gate.py
	python benchmarks/constrained.py
	python benchmarks/model_checking.py
	python benchmarks/trajectory.py
	python benchmarks/language.py
	python benchmarks/integration.py
	python benchmarks/inference.py
	python benchmarks/distributed.py
	python benchmarks/scaling.py
	python benchmarks/nexus.py
	python benchmarks/compression.py
	python benchmarks/compression_page.py
	python benchmarks/wire.py
	python benchmarks/rollout_workers.py

soak: | $(BIN)/loomrl  ## what must never happen to a server or a cluster, at length: kills, swaps, bad versions, fuzzing, lost hosts; takes hours
	python -m tests.soak

faults: | $(BIN)/loomrl  ## a person intervenes while the registry, LoomDB, MLflow, the disk or a clock is broken, alone and in pairs; takes root, and an hour
	python -m tests.faults

mutations: | $(BIN)/loomrl  ## plant classic silent bugs one at a time and see which the tests notice; takes an hour
	python benchmarks/mutations.py run
	python benchmarks/mutations.py render

calibration: | $(BIN)/loomrl  ## simulate how often every bound and test that decides is wrong, and finds what is there; goes on where it was; takes hours
	python -m benchmarks.calibration

manipulations: | $(BIN)/loomrl  ## manipulate audit logs and LoomDB at random: each is found and named; goes on where it was; minutes
	python -m benchmarks.audit_manipulations

release: | $(BIN)/loomrl  ## build the wheel and source archive of the commit into dist/, with its pins and bill of materials
	deploy/release/build

clean:  ## remove the virtual environments and all caches; state and artifacts stay
	rm -rf $(VENV) .venv-peers .venv-mlserver .venv-kserve .venv-atropos .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
