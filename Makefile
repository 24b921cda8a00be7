# Every target sets up what it needs by itself; see .ci/setup.sh.
.DEFAULT_GOAL := help
.PHONY: help demo test campaigns lint docs setup clean
MAKEFLAGS += --no-print-directory
PYTHON := .venv/bin/python
# By `sudo make` too, what is made here belongs to whoever the checkout belongs to.
OWNED := bash .ci/owned.sh

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-12s %s\n' "$$target" "$$text"; done

demo: ## compile the sample set on a real driver, twice: cold, then from the saved cache
	@$(OWNED) bash .ci/demo.sh

# Tests start some thousand interpreters. Byte code is written also where the environment forbids it, as images
# of containers do; and numpy's OpenBLAS, which nothing here uses, starts no threads that would wait by spinning.
test campaigns: export PYTHONDONTWRITEBYTECODE :=
test campaigns: export OPENBLAS_NUM_THREADS := 1
test: lint ## set up, check, and run all tests
	@$(OWNED) $(PYTHON) -m pytest

campaigns: export ORCHESTRATOR_CAMPAIGNS := whole
campaigns: setup ## the whole of the campaigns of which a run of all tests tries a share: kills, damage, fuzzing
	@$(OWNED) $(PYTHON) -m pytest tests/stores/faults tests/stores/test_binary_store.py \
		tests/run/test_storms.py tests/run/test_cancellation.py tests/run/test_compile_cancellation.py \
		tests/schedule/test_scheduler_properties.py \
		tests/supervise/test_kills.py tests/supervise/test_chaos.py tests/cluster/test_kills.py \
		tests/sets/image/test_mutants.py

lint: setup ## style, types, and generated files that must regenerate identically
	@$(OWNED) $(PYTHON) -m ruff check
	@$(OWNED) $(PYTHON) -m ruff format --check
	@$(OWNED) $(PYTHON) -m mypy
	@$(OWNED) $(PYTHON) -m orchestrator.registry.codegen --check
	@$(OWNED) $(PYTHON) -m orchestrator.devices.vulkan.codegen --check
	@$(OWNED) $(PYTHON) -m orchestrator.sets.sample --check

docs: setup ## the pages and a reference of the library as a site in build/docs, its links checked
	@$(OWNED) $(PYTHON) -m sphinx -W --keep-going -q -j auto -d build/doctrees docs build/docs

setup: ## system packages (as root) and .venv, for demo and tests
	@bash .ci/setup.sh test

clean: ## remove .venv and everything built
	@rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find orchestrator tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
