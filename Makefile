# make demo   sets everything up, then runs the main job; DATA=folder/of/class/folders to use your own photographs
# make test   sets everything up, then runs the linter, the type checker and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPES := .types/forebay

.PHONY: demo test lint types setup format clean

demo: setup
	$(BIN)/forebay demo $(if $(DATA),--data "$(DATA)")

test: setup lint types
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"forebay needs Python 3.11 or newer, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	mkdir -p $(TYPES) && for e in forebay/* loader cache sharding trainers benchmarks; do ln -sfn "../../$$e" $(TYPES)/; done
	$(BIN)/mypy -p forebay
	$(BIN)/mypy tests

format: setup
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) .types build *.egg-info demo
