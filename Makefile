# Every target makes .venv itself. wheel, conda, test and lint need Python 3.10 or later, git, make and
# g++; what other targets need is in CONTRIBUTING.md and ci/README.md.

PYTHON ?= python3
TAG    ?=
OUT    ?= dist
PROGRAMS ?= 10000

VENV := .venv
BIN  := $(VENV)/bin
CXX_FILES = $$(find patches tests lmsbuild/data -name '*.cpp' -o -name '*.h')

# It is made once, and would be used without a word.
ifneq ($(and $(filter command,$(origin PYTHON)),$(wildcard $(BIN)/python),$(filter-out clean,$(MAKECMDGOALS))),)
version_of = $(shell $(1) -c 'import sys; print(*sys.version_info[:2])')
ifneq ($(call version_of,$(PYTHON)),$(call version_of,$(BIN)/python))
$(error $(VENV) has another Python than $(PYTHON); remove it first: rm -r $(VENV))
endif
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help wheel conda release release-dry release-matrix test docs man cross matrix nightly syntax oracle mutants sanitizers in-tree lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

wheel: $(VENV)/.installed ## Build torch with Large Model Support into dist/ (TAG=... for another release)
	$(BIN)/lmsbuild wheel $(TAG) --out "$(OUT)"

conda: $(VENV)/.installed-conda ## Build torch-lms for conda's PyTorch, into the channel dist/channel (TAG=... for one release; ARGS="--build-number 1" to build again)
	$(BIN)/lmsbuild conda --addon $(TAG) --out "$(OUT)" $(ARGS)
	$(BIN)/lmsbuild channel add "$(OUT)/channel" "$(OUT)"/linux-*/torch-lms-*.conda

release: $(VENV)/.installed-conda ## Build, verify, test and index every tag, architecture and Python (ARGS="--tag TAG")
	$(BIN)/python ci/release.py $(ARGS)

release-dry: $(VENV)/.installed ## Print what `make release` would do, and why
	$(BIN)/python ci/release.py --dry-run $(ARGS)

# For .github/workflows/release.yml.
release-matrix: $(VENV)/.installed
	@$(BIN)/python ci/release.py --matrix $(ARGS)

test: $(VENV)/.installed-dev ## Run every test; ARGS=... runs pytest alone, with these arguments
ifneq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest -q $(ARGS)
else
	$(BIN)/python ci/lanes.py
endif

docs: $(VENV)/.installed-docs ## Build the documentation's site into build/site (ARGS=--links follows links to other sites)
	$(BIN)/python ci/docs.py $(ARGS)

man: $(VENV)/.installed-docs ## Build the site, and lmsbuild's manual page, build/man/lmsbuild.1
	$(BIN)/python ci/docs.py --man

cross: $(VENV)/.installed-dev ## Test the wheels of other architectures below qemu, longer than `make test` does
	LMS_CROSS=required $(BIN)/python ci/cross_tests.py --larger

matrix: $(VENV)/.installed-dev ## Check, build and test every tag with a wheel; a table goes to build/matrix.md
	$(BIN)/lmsbuild dev matrix

nightly: $(VENV)/.installed-dev ## Compile what the hooks change; run PROGRAMS random programs (10000) on three tags; follow links: hours
	$(BIN)/python ci/syntax.py --debian
	$(BIN)/python ci/headers.py
	$(BIN)/python ci/torch_tests.py --programs $(PROGRAMS)
	$(BIN)/python ci/docs.py --links

syntax: $(VENV)/.installed-dev ## Compile the upstream files that the hooks change, SOURCE=..., with them and without (TAG=...)
	$(BIN)/python ci/syntax.py $(ARGS) $(SOURCE) $(TAG)

oracle: $(VENV)/.installed-dev ## Run PyTorch's own tests with everything idle paged out (ARGS="--sample 1 test_optim")
	$(BIN)/python ci/oracle.py $(ARGS)

mutants: $(VENV)/.installed-dev ## Plant bugs in the runtime; LMS_PYTHON has a disposable LMS torch
	$(BIN)/python ci/mutants.py $(LMS_PYTHON)

sanitizers: $(VENV)/.installed-dev ## Run the runtime's tests with ASan, UBSan and TSan; LMS_PYTHON as above
	$(BIN)/python ci/sanitizers.py $(LMS_PYTHON)

in-tree: $(VENV)/.installed-dev ## Test the runtime that a patched checkout's CMake builds; SOURCE=..., LMS_PYTHON as above
	$(BIN)/python ci/in_tree.py $(SOURCE) $(LMS_PYTHON)

lint: $(VENV)/.installed-dev ## Check style and types of everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/.installed-dev ## Bring Python and C++ into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean: ## Remove .venv, build (with build/release) and caches of tools; dist stays
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: $(PYTHON) is missing or older than 3.10; name another: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps are what says that an installation was finished.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-conda: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[conda]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-conda $(VENV)/.installed-docs
