PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python
# pip would compile all that is installed, four times what is imported: an import after it does.
PIP := $(RUN) -m pip install --quiet --no-input --no-compile --disable-pip-version-check \
	-c constraints.txt
INSTALLED := .venv/.installed
# The package index that torch alone comes from; empty = pip's own.
TORCH_INDEX ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-full docs results test test-slow test-all test-other-cpu lint format bench clean

help: ## show this list
	@echo "make TARGET [PYTHON=python3.12] [TORCH_INDEX=$(CPU_INDEX)]"
	@echo "Python 3.11, 3.12 or 3.13; every target installs what it needs: on Linux 6.2 GB with CUDA's"
	@echo "torch, which a GPU needs, or 2.5 GB with this index"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{printf "  %-14s %s\n", $$1, $$2}'

venv: $(INSTALLED) ## create .venv and install the tested versions

# torch comes first, alone: its index may lack the pinned versions of what it needs.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "PYTHON=$(PYTHON): no such command"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "PYTHON=$(PYTHON): must be Python 3.11 or newer, is $$($(PYTHON) --version);" \
			"name another: make PYTHON=python3.12"; exit 1; }
	@echo "Installing into .venv: a few minutes, once"
	@test "$(TORCH_INDEX)" -o "$$(uname)" != Linux || command -v nvidia-smi > /dev/null || echo \
		"No NVIDIA GPU: 6.2 GB with CUDA's torch, 2.5 GB with make venv TORCH_INDEX=$(CPU_INDEX)"
	@test -x $(RUN) || $(PYTHON) -m venv .venv
	@$(PIP) --no-deps $(TORCH_INDEX:%=--index-url %) "$$(grep '^torch==' constraints.txt)"
	@$(PIP) -e '.[dev]'
	@env -u PYTHONDONTWRITEBYTECODE $(RUN) -c "import train"
	@touch $@

DEMO := $(RUN) train.py -m model=bm25,t5_colbert,t5_seal resume=true

demo: $(INSTALLED) ## train, search and compare BM25, T5-ColBERT and T5-SEAL on generated text
	$(DEMO) experiment=demo
	@echo "Next: .venv/bin/python -m analysis.explore runs=outputs/demo   ask these systems anything, and why;"
	@echo "      open outputs/demo/comparison.html, or the report.html of one of its runs;"
	@echo "      your own texts: .venv/bin/python train.py model=t5_colbert data=files data.path=FOLDER"
	@echo "      every group and key: .venv/bin/python train.py --help; the same in full: make demo-full"

demo-full: $(INSTALLED) ## the same on 500 documents with every system's default training: a quarter of an hour
	$(DEMO) experiment=demo_full

docs: $(INSTALLED) ## build the documentation and its API reference: docs/_build/html/index.html
	$(RUN) -m sphinx -q -W --keep-going -b html docs docs/_build/html

results: $(INSTALLED) ## make the tables of these pages again from the records in results/
	$(RUN) -m analysis.record runs=[] page=[README.md,docs/results.md,docs/benchmarks.md,docs/training.md,docs/models.md]

PYTEST := $(RUN) -m pytest -q -n auto --dist worksteal
# The kernels of a CPU without AVX-512 and bf16, sums in another order, tests in another order.
# Threads that wait do not spin: every core has two of them.
OTHER_CPU := OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE ATEN_CPU_CAPABILITY=default \
	ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE
NUMERIC := tests/gr_mvdr tests/models tests/analysis tests/data_modules
SEED ?= 1

test: $(INSTALLED) ## run the tests, a process of one thread on every core
	OMP_NUM_THREADS=1 $(PYTEST) -m 'not slow'

test-slow: $(INSTALLED) ## run what `make test` leaves out: minutes each
	OMP_NUM_THREADS=1 $(PYTEST) -m slow

test-all: $(INSTALLED) ## run both, which takes less than one after the other
	OMP_NUM_THREADS=1 $(PYTEST)

test-other-cpu: $(INSTALLED) ## run what computes as another CPU does, in random order (SEED=1)
	$(OTHER_CPU) $(PYTEST) -m 'not slow' -p randomly --randomly-seed=$(SEED) $(NUMERIC)

lint: $(INSTALLED) ## check style, format and the types of gr_mvdr
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(INSTALLED) ## repair style and format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# xtr-warp-rs needs an older torch, so it gets an environment of its own.
.peers/.installed: Makefile
	@$(PYTHON) -m venv .peers
	@.peers/bin/python -m pip install --quiet --no-input --disable-pip-version-check torch==2.11.0
	@.peers/bin/python -m pip install --quiet --no-input --disable-pip-version-check \
		xtr-warp-rs==2.1.0.2110
	@touch $@

bench: $(INSTALLED) .peers/.installed ## run every benchmark and write docs/benchmarks.md: 20 minutes on a quiet machine
	$(RUN) -m tests.benchmarks

clean: ## remove .venv, .peers and caches; outputs/ stays
	rm -rf .venv .peers .pytest_cache .ruff_cache build *.egg-info docs/_build docs/api
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
