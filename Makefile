# Every target does its own set-up; the first run builds .venv, later runs start at once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
KAFKA := $(VENV)/.kafka-jars
PYTHON ?= python3
EXPERIMENT ?= sweep
ARGS ?=

.PHONY: help setup demo test quick coverage torture stores fuzz soak cluster lint typecheck bench bench-report docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with the package and all its extras

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "streamjoin needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "setting up $(VENV) (once; takes a minute or two) ..."
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[spark,service,bench,dev]'
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps traffic==2.13
	@touch $@

demo: $(STAMP) ## a month of real flights joined live with the weather on Spark, in about a minute
	@$(PY) -m streamjoin demo $(ARGS)

test: lint $(KAFKA) ## ruff, mypy --strict and the whole test suite
	@$(PY) -m tests.page.chromium
	@$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(STAMP) ## the library's tests that need no Spark, browser or broker, in under two minutes
	@STREAMJOIN_QUICK=1 $(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --ignore tests/benchmarks -m "not (spark or broker or browser or slow)" $(ARGS)

coverage: $(KAFKA) ## the whole suite, then the lines of the package that it never ran
	@$(PY) -m tests.page.chromium
	@$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term $(ARGS)

# The Kafka tests run a real broker. Its jars and the connector's come once and stay in the user's cache.
$(KAFKA): $(STAMP) tests/spark/kafka_broker.py src/streamjoin/spark/runtime/jars.py
	@echo "fetching Kafka for the tests (once; under a minute) ..."
	@$(PY) -m tests.spark.kafka_broker
	@touch $@

KILLS ?= 200
torture: $(STAMP) ## kill drivers, executors, ad-hoc engines and services at random moments, hundreds of times (takes an hour)
	@STREAMJOIN_KILLS=$(KILLS) $(PY) -m pytest tests/spark/test_exactly_once.py $(ARGS)
	@STREAMJOIN_KILLS=$$(($(KILLS) / 10 + 1)) $(PY) -m pytest tests/spark/test_adhoc_killed.py $(ARGS)
	@STREAMJOIN_KILLS=$$(($(KILLS) / 2 + 1)) $(PY) -m pytest tests/service/test_serve_embedded.py -k killed $(ARGS)

RACES ?= 50
stores: $(STAMP) ## checkpoints on moto, MinIO, Azurite, fake-gcs-server and HDFS: kills and races on each (needs Go, npm, cargo, gcc)
	@STREAMJOIN_KILLS=$(if $(filter file,$(origin KILLS)),10,$(KILLS)) STREAMJOIN_RACES=$(RACES) $(PY) -m pytest tests/stores/check_stores.py $(ARGS)

cluster: $(STAMP) ## joins on a cluster with a bad network: hosts in network namespaces, cut off and killed (as root)
	@$(PY) -m tests.cluster

MINUTES ?= 30
fuzz: $(STAMP) ## compare generated joins and queries with references under fresh seeds: make fuzz MINUTES=30
	@$(PY) -m tests.fuzz --minutes $(MINUTES) $(ARGS)

soak: $(STAMP) ## a live join at full load for ten minutes, with its memory
	@$(PY) -m benchmarks live_soak $(ARGS)

lint: $(STAMP) ## ruff and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: $(STAMP) ## run one experiment: make bench EXPERIMENT=sweep ARGS=--quick
	@$(PY) -m benchmarks $(EXPERIMENT) $(ARGS)

bench-report: $(STAMP) ## write docs/reproduction.md (the papers' figures beside ours) and README's tables from the stored results
	@$(PY) -m benchmarks.reproduction
	@$(PY) -m benchmarks.speed_table
	@$(PY) -m benchmarks.comparison

docs: $(STAMP) ## build the documentation site in build/site
	@$(PY) docs/build_site.py

clean: ## remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
