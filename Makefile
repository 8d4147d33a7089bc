# make demo    set up, then show attention at work
# make test    set up, then lint, types and every test
# make check   the fast subset of it, to run often
# make bench   speed and memory as ratios against PyTorch's own attention, eager code and torch.compile

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test check lint bench clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing regard and its tools into $(VENV) (a few minutes the first time) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[gpu,plot,test]"
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto

check: lint
	$(BIN)/python -m pytest -n auto -m "not slow"

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
