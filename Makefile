# Every target makes and uses .venv by itself; needs only Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export TOKENIZERS_PARALLELISM := false
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 1000

.PHONY: quickstart test test-crash lint tiny tiny-check docs reproduce clean

quickstart: $(VENV)/.run
	$(VENV)/bin/coterie quickstart

test: $(VENV)/.dev
	$(PY) -m pytest -m "not slow"

test-crash: $(VENV)/.dev
	$(PY) -m pytest -m slow tests/crash

lint: $(VENV)/.dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest tests/test_floors.py tests/test_docs.py

tiny: $(VENV)/.run
	$(PY) -m coterie.recipes.tiny --world exchange --out src/coterie/assets/tiny-exchange

tiny-check: $(VENV)/.dev
	$(PY) -m pytest -m slow tests/test_tiny_rebuild.py

docs: $(VENV)/.run
	$(VENV)/bin/coterie config optima/isft --markdown > docs/config.md

reproduce: $(VENV)/.run
	$(VENV)/bin/coterie reproduce optima/isft --scale tiny

# The virtual environment: .run has what the package needs, .dev also what its tests need.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "coterie needs Python 3.11 to 3.13; set PYTHON=python3.12, for example")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
