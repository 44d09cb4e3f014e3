# `make run` and `make test` are all a newcomer needs; the rest is for those who work on Outrider.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start hundreds of programs, each of which would compile all of Outrider anew.
unexport PYTHONDONTWRITEBYTECODE

# Two at a time, the output of each in one piece; fails if one fails.
SIDE_BY_SIDE = $(MAKE) --no-print-directory --jobs=2 --output-sync=target

TESTS = $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: run test repeat soak strangers check static style layers types tests-load bench bench-check docs format clean

run: $(VENV)/installed-run  ## a game and a benchmark solved by the built-in policy: no key, no server, no GPU
	@$(BIN)/outrider run --mode FrozenLake --limit 24 --num-rollouts 8 --model 'builtin:solver?latency=0.2'
	@$(BIN)/outrider run --mode math --num-rollouts 8 --model 'builtin:solver?latency=0.2'
	@echo
	@echo "Open the page named last in a browser. To have the command outrider in this shell:"
	@echo
	@echo "    . $(BIN)/activate"

test: $(VENV)/installed-test  ## everything, as CI runs it
	@$(SIDE_BY_SIDE) types tests-load style layers
	$(TESTS)

repeat: $(VENV)/installed-test  ## the tests N times (ten) beside two busy loops, with a list of what failed
	sh scripts/repeat-tests.sh $(or $(N),10) $(TESTS)

soak: $(VENV)/installed-test  ## long chaos, 10,000 simulated schedules: half an hour or MINUTES=120, written to bench/RESULTS.md
	$(if $(MINUTES),OUTRIDER_SOAK_MINUTES=$(MINUTES)) $(BIN)/python bench/suites.py soak

strangers: $(VENV)/installed-test  ## against servers of others, downloaded from the package index; written to bench/RESULTS.md
	$(BIN)/python bench/suites.py strangers

check: $(VENV)/installed-test static  ## what to run before a commit: static checks and the fast tests
	$(BIN)/pytest -q -n 2 tests/unit tests/contract tests/property

static: $(VENV)/installed-test
	@$(SIDE_BY_SIDE) types style layers

style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

layers:
	$(BIN)/lint-imports

types:
	$(BIN)/mypy

tests-load:  # one process compiles the tests and what they import, which each worker of pytest would do again
	$(BIN)/pytest --collect-only -qq >$(VENV)/tests-load.log || { tail -n 100 $(VENV)/tests-load.log; exit 1; }

bench: $(VENV)/installed-test  ## a short round of all benchmarks, or of NAMES="pool sched", written to bench/RESULTS.md
	$(BIN)/python bench/results.py --quick $(NAMES)

bench-check: $(BIN)/python  ## which sections of bench/RESULTS.md were measured on other code than this commit's
	$(BIN)/python bench/results.py --check

docs: $(VENV)/installed-test  ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict

format: $(VENV)/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) bench/.venv-* results site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Outrider needs Python 3.11 or newer; point to one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); sh scripts/install-venv.sh && $(PYTHON) -m venv $(VENV); }

$(VENV)/installed-run: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing Outrider into $(VENV) …"
	@$(PIP) --editable '.[math]'
	@touch $@

$(VENV)/installed-test: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing Outrider and what its tests need into $(VENV) …"
	@$(PIP) --no-compile --editable '.[test,check]'
	@$(BIN)/python -m compileall -qq -j 2 -x '/(tests?|pip|setuptools)/' $(VENV)/lib
	@sh scripts/install-system-packages.sh gcc libc6-dev bubblewrap chromium docker.io iproute2 \
		xvfb openbox xterm nano wmctrl hsetroot x11-utils x11-xserver-utils xdg-utils fontconfig fonts-dejavu-core \
		qemu-system-x86 qemu-utils ovmf squashfs-tools linux-image-cloud-amd64 busybox-static \
		xserver-xorg-core xserver-xorg-video-fbdev xserver-xorg-input-evdev
	@touch $@ $(VENV)/installed-run
