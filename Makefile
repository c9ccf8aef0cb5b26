# Two targets do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv by itself.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types bench-check slow stress stress-serve package clean

demo: .venv/core  ## fit a model to a few embedded pictures, from an encoder that ships and from none
	$(BIN)/vitreous demo

test: lint types  ## lint, types and tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/dev
	$(BIN)/mypy

bench-check: .venv/dev  ## hot paths against stored bounds, so that nothing slow comes back unnoticed; minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_check.py $(ARGS)

slow: .venv/dev  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

stress: .venv/dev  ## campaigns of docs/RELIABILITY.md, in full; again, it goes on. ARGS="kills --count 20" for a part
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m stress $(ARGS)

stress-serve: .venv/dev  ## the service under load, for minutes; wants a quiet machine
	$(BIN)/python benchmarks/serve.py --seconds 60 --out docs/results/serving.json

package: .venv/dev  ## dist/: a wheel and an sdist
	$(BIN)/python -m build

clean:
	rm -rf .venv runs dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e .
	touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) -e '.[dev]'
	touch $@ .venv/core
