# Every target does its own set-up: the first run makes .venv with what it needs, later runs start at once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
MAKE_VENV = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "streamjoin needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }; \
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
PIP := $(PY) -m pip --disable-pip-version-check
UV := $(VENV)/uv
RUN := $(VENV)/.ready
STAMP := $(VENV)/.installed
JARS := $(VENV)/.jars
KERNELS := $(VENV)/.kernels
COLLECTED := $(VENV)/.collected
# What the whole suite needs, made side by side: one waits for the network while another computes.
READY := $(JARS) $(KERNELS) $(COLLECTED) classes chromium prometheus
PYTHON ?= python3
# Modules are compiled once, not by each of the hundreds of processes that the tests start.
export PYTHONDONTWRITEBYTECODE :=
EXPERIMENT ?= sweep
ARGS ?=
# Three processes for two cores: one of them waits most of the time, for Spark, a broker or a browser.
WORKERS ?= 3
PYTEST = $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# uv takes a quarter of pip's time; pip installs where uv can't, or where it is told of an index of its own. Spark's wheel is
# built here, out of jars: to compress them again would take longer than all other packages together.
WHEELS := $(CURDIR)/$(VENV)/wheels.cfg
define install
{ printf '[bdist_wheel]\ncompression = stored\n' > '$(WHEELS)'; export DIST_EXTRA_CONFIG='$(WHEELS)'; \
	{ ! $(PIP) config list | grep index >/dev/null && { test -x $(UV)/bin/uv || $(PIP) install --quiet --target $(UV) uv; } && \
		$(UV)/bin/uv pip install --python $(PY) $(1); } || $(PIP) install --no-compile $(1); }
endef
RUNNING := .[spark-without-java,service]
ALL := .[spark,service,bench,dev]

.PHONY: help setup demo test quick house thorough coverage torture stores fuzz soak cluster lint chromium prometheus classes bench papers16 bench-report docs dist clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with the package, and all that the tests need

# What running needs: the package with Spark and the service. A Java comes along (0.1 GB) where none is new enough.
$(RUN): pyproject.toml
	@echo "setting up $(VENV) with Spark and the service (once; 1 GB, some minutes, most of it for Spark) ..."
	@$(MAKE_VENV)
	@$(call install,--editable '$(RUNNING)')
	@$(PY) -c 'from streamjoin.spark.runtime.java import find_java; find_java()' 2>/dev/null || $(call install,--editable '.[spark]')
	@rm -rf $(UV)
	@touch $@

# That and what the tests, the experiments and the site need, at once: pip works out the versions a single time.
$(STAMP): pyproject.toml
	@echo "setting up $(VENV) with what the tests and experiments need (once; 2.4 GB, some minutes) ..."
	@$(MAKE_VENV)
	@$(call install,--editable '$(ALL)')
	@$(call install,--no-deps traffic==2.13)
	@rm -rf $(UV)
	@touch $(RUN) $@

demo: $(RUN) ## a month of real flights joined live with the weather on Spark, in about a minute
	@$(PY) -m streamjoin demo $(ARGS)

test: ## ruff, mypy --strict and the whole test suite
	@$(MAKE) --no-print-directory --jobs 4 lint $(READY)
	@$(PYTEST) --slowest $(ARGS)

quick: $(STAMP) ## the library's tests that need no Spark, browser or broker, in about three minutes
	@$(PYTEST) --ignore tests/benchmarks -m "not (spark or broker or browser or slow)" $(ARGS)

house: ## the shape of the package in figures; ARGS=--names shows what is behind each
	@$(PYTHON) -m tests.house $(ARGS)

thorough: ## the whole suite and what it leaves out: every experiment, every pair of settings, all examples of generated tests
	@$(MAKE) --no-print-directory --jobs 4 $(READY)
	@STREAMJOIN_THOROUGH=1 $(PYTEST) --slowest $(ARGS)

coverage: ## the whole suite, then the lines of the package that it never ran
	@$(MAKE) --no-print-directory --jobs 4 $(READY)
	@$(PYTEST) --cov --cov-report=term $(ARGS)

# The page's tests drive a browser. No package is needed to see to one: it comes while the packages are installed.
chromium:
	@$(PYTHON) -m tests.page.chromium

# The tests of the alerts run a Prometheus, which stays in the user's cache.
prometheus: $(STAMP)
	@$(PY) -m tests.deploy.prometheus

# The kernels that most tests run, compiled while the rest of the set-up waits for the network.
$(KERNELS): $(STAMP)
	@echo "compiling kernels (once; under a minute) ..."
	@$(PY) -m streamjoin warmup
	@touch $@

# Each process of the suite reads all tests, and all begin at once: one reads them before and leaves them compiled.
$(COLLECTED): $(STAMP)
	@$(PY) -m pytest --collect-only --quiet > /dev/null 2>&1 || true
	@touch $@

# An archive of Spark's classes: with it a JVM starts in half the time, and the tests start dozens.
classes: $(STAMP)
	@$(PY) -m tests.spark.class_archive

# Tests run a real Kafka broker and reach a store from Spark. The jars come once and stay in the user's cache.
$(JARS): $(STAMP) tests/spark/kafka_broker.py tests/stores/servers.py src/streamjoin/spark/runtime/jars.py
	@echo "fetching Kafka and a client of S3 for the tests (once; under a minute) ..."
	@$(PY) -m tests.spark.kafka_broker
	@$(PY) -m tests.stores.servers
	@touch $@

KILLS ?= 200
torture: $(STAMP) ## kill drivers, executors, ad-hoc engines and services at random moments, hundreds of times (takes an hour)
	@STREAMJOIN_THOROUGH=1 STREAMJOIN_KILLS=$(KILLS) $(PY) -m pytest tests/spark/test_exactly_once.py tests/spark/test_cluster.py $(ARGS)
	@STREAMJOIN_THOROUGH=1 STREAMJOIN_KILLS=$$(($(KILLS) / 10 + 1)) $(PY) -m pytest tests/spark/test_adhoc_killed.py $(ARGS)
	@STREAMJOIN_THOROUGH=1 STREAMJOIN_KILLS=$$(($(KILLS) / 2 + 1)) $(PY) -m pytest tests/service/test_serve_embedded.py tests/service/test_serve.py -k kill $(ARGS)

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

papers16: $(STAMP) ## on sixteen cores: all figures that want them, at most MINUTES=30; those that are current are left out
	@$(PY) -m benchmarks --many-cores --keep --minutes $(MINUTES) $(ARGS)

bench-report: $(STAMP) ## write docs/reproduction.md (the papers' figures beside ours), docs/speed.md and README's tables from the stored results
	@$(PY) -m benchmarks.reproduction
	@$(PY) -m benchmarks.speed_table
	@$(PY) -m benchmarks.comparison

docs: $(STAMP) ## build the documentation site in build/site
	@$(PY) docs/build_site.py

dist: ## build the wheel and the sdist into dist/, check them, and use the wheel in a bare environment
	@$(PYTHON) -m tests.release

clean: ## remove what the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
