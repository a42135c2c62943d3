# Everything a fresh machine needs: `make demo` to see it work, `make test` to check it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test venv frameworks lint types imports check bench fuzz torture clean

# A race at a large batch; what tuning finds for the baseline is used for both methods.
demo: venv
	$(BIN)/dropmuon race --batch-size 3500 --methods full,drop-muon:parts-8 --lr 0.14 --momentum 0.5 \
		--epochs 6 --ladder 1,1.6,2.4 --seeds 5 --evaluations-per-epoch 0.5 --train-examples 1000

test: lint types imports check

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

# The libraries that people train with, for tests only.
frameworks: $(STAMP)-frameworks

$(STAMP)-frameworks: $(STAMP)
	$(PIP) -e '.[frameworks]'
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: frameworks
	$(BIN)/mypy

imports: venv
	$(BIN)/lint-imports

check: frameworks
	$(BIN)/pytest -n 2

bench: venv
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/step.py

# Random settings and events: 10,000 configurations, about an hour.
fuzz: venv
	FUZZ=10000 $(BIN)/pytest tests/contract/test_fuzz.py

# Kills commands of the lab at random moments, and compares what they find in the end.
torture: venv
	$(BIN)/python -m tests.torture

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
