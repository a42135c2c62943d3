# Everything a fresh machine needs. `make help` lists the targets, by what stands behind `##`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test venv frameworks site-tools docs lint types imports check bench fuzz torture hooks dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What tuning finds for the baseline is used for both methods.
demo: venv ## race all layers against parts, at a large batch; one minute after the installation
	$(BIN)/dropmuon race --batch-size 3500 --methods full,drop-muon:parts-8 --lr 0.24 --momentum 0.3 \
		--epochs 6 --ladder 1,1.6,2.4 --seeds 5 --evaluations-per-epoch 0.5 --train-examples 1000

test: lint types imports check ## all that CI checks

venv: $(STAMP) ## make .venv, with everything for development

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@

frameworks: $(STAMP)-frameworks ## add the libraries that people train with, for tests only

$(STAMP)-frameworks: $(STAMP)
	$(PIP) -e '.[frameworks]'
	touch $@

site-tools: $(STAMP)-docs ## install what builds the site

$(STAMP)-docs: $(STAMP)
	$(PIP) -e '.[docs]'
	touch $@

docs: site-tools ## build the site into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: venv ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: frameworks ## types, strictly
	$(BIN)/mypy

imports: venv ## who may import whom
	$(BIN)/lint-imports

check: frameworks site-tools ## the tests
	$(BIN)/pytest -n 2

bench: venv ## what a step costs, as in docs/benchmarks.md
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/step.py

fuzz: venv ## 10,000 random settings and events, about an hour
	FUZZ=10000 $(BIN)/pytest tests/contract/test_fuzz.py

torture: venv ## kill commands of the lab at random moments, and compare what they find
	$(BIN)/python -m tests.torture

hooks: venv ## let git run lint before a commit, and types before a push
	$(PIP) -e '.[release]'
	$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

dist: venv ## build the sdist and the wheel, and try each in a fresh environment
	$(PIP) -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python scripts/check_dist.py dist/*

clean: ## remove .venv, dist, site and caches
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
