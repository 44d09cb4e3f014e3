# `make run` and `make test` are all a newcomer needs; the rest is for those who work on Outrider.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := results/demo.db
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test check static bench format clean

run: $(VENV)/installed-run  ## 20 test rollouts on 4 workers, no key, no server
	@mkdir -p results
	@$(BIN)/outrider enqueue --test 20 --store sqlite:///$(DEMO)
	@$(BIN)/outrider work --workers 4 --until-done --store sqlite:///$(DEMO)
	@echo "Look closer: $(BIN)/outrider status --store sqlite:///$(DEMO)"

test: $(VENV)/installed-test static  ## everything, as CI runs it
	$(BIN)/pytest -n 2 --dist worksteal

check: $(VENV)/installed-test static  ## what to run before a commit: static checks and the fast tests
	$(BIN)/pytest -q -n 2 tests/unit tests/contract tests/property

static: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed-test  ## a short round of all benchmarks, written to bench/RESULTS.md
	$(BIN)/python bench/results.py --quick

format: $(VENV)/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) bench/.venv-* results .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Outrider needs Python 3.11 or newer; point to one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); sh scripts/install-venv.sh && $(PYTHON) -m venv $(VENV); }

$(VENV)/installed-run: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing Outrider into $(VENV) …"
	@$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing Outrider and what its tests need into $(VENV) …"
	@$(PIP) --editable '.[test,check]'
	@touch $@ $(VENV)/installed-run
