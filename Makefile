# Every target works from a fresh clone with only make and Python >= 3.11. `make help` lists them.
PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
PIP   := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt
# pip would compile what it installs on a single core; a file that does not compile is a template of some package.
COMPILED = @find $(VENV)/lib -name '*.py' ! -path '*/tests/*' $(1) -print0 | \
    xargs -0 -r -n 200 -P 4 $(BIN)/python -m compileall -qq || true
# Every process that the tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
TESTS  = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-fast test-all check lint types layers budgets format docs bench tables gpu package install clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(VENV)/.package ## compare methods on the digits data; report and pictures in demo/
	$(BIN)/python -m torchbayes.comparison.bands demo
	$(BIN)/torchbayes compare --data digits --directory demo --overwrite

# Small tensors gain nothing from threads, and processes that each start some slow each other down.
test test-fast test-all docs tables: export OMP_NUM_THREADS = 1

test: $(VENV)/.test ## the whole test suite (ARGS="-k swag" narrows it)
	$(TESTS) $(ARGS)

test-fast: $(VENV)/.test ## the tests that are not marked slow
	$(TESTS) -m "not slow" $(ARGS)

test-all: $(VENV)/.test ## every combination of arguments, and long studies
	$(TESTS) --every-case $(ARGS)

check: lint types layers budgets ## lint, format, types, layers, budgets

lint: $(VENV)/.check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tools/public.py

types: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
types: $(VENV)/.test $(VENV)/.check
	$(BIN)/pyright

layers: $(VENV)/.check
	$(BIN)/lint-imports

budgets: $(VENV)/.package
	$(BIN)/python tools/budgets.py

format: $(VENV)/.check ## apply the formatter and the safe fixes of the linter
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.docs ## build the documentation into site/, running its tutorials
	$(BIN)/python -m mkdocs build --strict  # so that pages can import `tools`
	@! grep -l "Traceback (most recent" site/*.html site/tutorials/*.html site/experiments/*.html  # of a tutorial whose code fails

bench: $(VENV)/.test ## time torchbayes against its floors and peers
	$(BIN)/python -m benchmarks $(ARGS)

tables: $(VENV)/.test .peers/.tables ## compare predictions on tables with those of others, into tables/
	$(BIN)/python -m benchmarks.tables --workers $(WORKERS) $(ARGS)

# Without what they require, which is there in one version for all, or in the list. One that fails is left out.
.peers/.tables: benchmarks/tables/peers.txt $(VENV)/.package
	@mkdir -p .peers
	@for package in $$(grep -v '^#' $<); do \
	    $(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --no-deps --target .peers/tables $$package \
	    || echo "$$package cannot be installed; what needs it is left out."; done
	@touch $@

gpu: $(VENV)/.test ## test and time on a GPU, into gpu.json (ARGS="--device cpu --small" tries it without one)
	$(BIN)/python -m benchmarks.device $(ARGS)

package: $(VENV)/.package ## build wheel and sdist into dist/, and try the wheel in empty environments
	$(BIN)/python tools/package.py

install: $(VENV)/.test $(VENV)/.check $(VENV)/.docs ## everything the other targets need

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) site demo tables dist gpu.json .pytest_cache .ruff_cache .import_linter_cache
	find src experiments tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} +

# A stamp is written only after its install has succeeded. torch goes first and alone, so that no other
# package's requirements have a say in which build of it is taken.
$(VENV)/.package: pyproject.toml experiments/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if sys.version_info >= (3, 11) else \
	    "torchbayes needs Python 3.11 or newer; $(PYTHON) is " + v + ". Try make PYTHON=python3.11.")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(PIP) --quiet pip setuptools hatchling editables
	$(PIP) torch
	$(PIP) --quiet --no-build-isolation --editable . --editable experiments
	$(COMPILED)
	@touch $@

# baal is installed without what it requires, all of Jupyter.
$(VENV)/.%: $(VENV)/.package
	$(PIP) --quiet --group $*
	$(if $(filter architectures,$*),$(PIP) --quiet --no-deps baal structlog)
	$(call COMPILED,-cnewer $(VENV)/.package)
	@touch $@
