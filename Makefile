# make demo   a small real model, fine-tuned, merged, asked and scored (about 6 minutes on 2 cores)
# make test   the whole suite      make check   the fast part      make soak   long kill and fuzz runs
#
# PYTHON  interpreter for the environment     VENV  where it goes
# TORCH   what pip installs for torch; where pip's index offers only CUDA builds, add the index of CPU wheels
#         through PIP_EXTRA_INDEX_URL

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := constraints/cpu.txt

.PHONY: demo fetch test check soak lint

# torch comes first and alone, so that no other package chooses its build.
$(BIN)/.torch: $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c $(CONSTRAINTS) "$(TORCH)" numpy
	touch $@

$(BIN)/.demo: $(BIN)/.torch pyproject.toml
	$(PIP) install -q -c $(CONSTRAINTS) -e '.[torch,demo]'
	touch $@

$(BIN)/.dev: $(BIN)/.torch pyproject.toml
	$(PIP) install -q -c $(CONSTRAINTS) -e '.[torch,mindspore,demo,dev]'
	touch $@

demo: $(BIN)/.demo
	$(BIN)/python examples/demo.py $(DEMO)

fetch: $(BIN)/.dev
	$(BIN)/python tests/fetch.py
	$(BIN)/python examples/smollm2.py

lint: $(BIN)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint fetch
	$(BIN)/python -m pytest -m "not soak"

check: lint fetch
	$(BIN)/python -m pytest -m "not soak and not slow"

soak: fetch
	$(BIN)/python -m pytest -m soak
