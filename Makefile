# Two commands are enough: `make demo` and `make test`. Both set up what is missing first (scripts/setup).
#
#   make setup              what the others begin with; a second run takes a second
#   make demo ARGS='...'    the swarm on this machine; arguments go to `muster swarm demo`
#   make test               lint, contracts, unit and integration tests; ARGS go to pytest
#   make test-all           the longer suites as well: three whole demos, more fuzzing
#   make test-contracts     the contracts' tests, and their gas against the snapshot
#   make -s gas             what the contracts' operations cost, as JSON; beside the limits and the peer's
#   make coverage           lines and branches of contracts/ that the tests run; fails below 98 % of either
#   make prove              halmos and slither over the contracts, in an environment of their own
#   make bench              all benchmarks, some hours; rewrites the tables in docs/
#   make bench-peers        what benchmarks/ compares with, installed into .peers
#   make lint               format, lint and types, nothing else
#   make clean              what was built or written by a run; keeps .venv and node_modules

SHELL := /bin/sh
PYTHON ?=
ARGS ?=
PATHS := muster orchestrator worker validator trainer scripts benchmarks tests

export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/node_modules/.bin:$(PATH)
export OMP_NUM_THREADS ?= 1
export HYPOTHESIS_STORAGE_DIRECTORY ?= $(CURDIR)/.hypothesis

.PHONY: setup demo test test-all test-contracts gas coverage prove bench bench-peers lint clean

setup:
	@PYTHON='$(PYTHON)' scripts/setup

demo: setup
	@muster swarm demo $(ARGS)

test: lint test-contracts
	pytest -m 'not slow' $(ARGS)

test-all: lint test-contracts
	FOUNDRY_PROFILE=long forge test
	pytest $(ARGS)

test-contracts: setup
	forge test --no-match-path tests/contracts/Gas.t.sol
	python benchmarks/gas.py --check

gas: setup
	@python benchmarks/gas.py --json

coverage: setup
	@mkdir -p cache
	forge coverage --no-match-path tests/contracts/Gas.t.sol --no-match-coverage '^(tests|node_modules)/' \
		--report lcov --report-file cache/lcov.info
	@python scripts/coverage.py cache/lcov.info --at-least 98

prove: setup .proofs/bin/halmos
	FOUNDRY_PROFILE=symbolic .proofs/bin/halmos --forge-build-out out/symbolic --match-contract 'Symbolic$$' --loop 64
	@rm -f cache/slither.json
	FOUNDRY_PROFILE=analysis .proofs/bin/slither . --config-file slither.config.json --json cache/slither.json
	@python scripts/answered.py cache/slither.json

.proofs/bin/halmos:
	python -m venv .proofs
	.proofs/bin/python -m pip install --quiet halmos==0.3.3 slither-analyzer==0.11.6

bench: bench-peers
	@mkdir -p cache/bench
	python benchmarks/gas.py --json > cache/bench/gas.json
	python benchmarks/broadcast.py --json > cache/bench/broadcast.json || test $$? -eq 3
	python benchmarks/verification.py --json --write > cache/bench/verification.json || test $$? -eq 3
	python benchmarks/stale_weights.py --write
	python benchmarks/trainer.py --json > cache/bench/trainer.json || test $$? -eq 3
	python benchmarks/async_speedup.py --json > cache/bench/async_speedup.json || test $$? -eq 3
	python benchmarks/learning.py --json > cache/bench/learning.json || test $$? -eq 3
	for part in gas broadcast verification; do python benchmarks/tables.py $$part cache/bench/$$part.json || exit 1; done
	python benchmarks/tables.py async cache/bench/async_speedup.json
	python benchmarks/tables.py trainer $(addprefix cache/bench/,trainer.json async_speedup.json learning.json)

bench-peers: setup .peers/toploc/bin/built .peers/shardcast/bin/built .peers/trl/bin/built

# The published wheel does not load with this torch; its source does. That takes some minutes.
.peers/toploc/bin/built:
	python -m venv .peers/toploc
	.peers/toploc/bin/python -m pip install --quiet --constraint constraints.txt torch numpy setuptools wheel ninja
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
	.peers/trl/bin/python -m pip install --quiet --constraint constraints.txt torch numpy transformers trl==1.16.0
	@touch $@

lint: setup
	ruff format --check $(PATHS)
	ruff check $(PATHS)
	pyright

clean:
	rm -rf out cache broadcast report.html .muster .stamps/contracts .stamps/native muster/chain/abi muster/native/built
	find muster/chain/contracts -name '*.py' ! -name __init__.py -delete
	rm -rf .pytest_cache .ruff_cache .hypothesis muster.egg-info
	find $(PATHS) -name __pycache__ -type d -prune -exec rm -rf {} +
