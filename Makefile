# `make run` and `make test` are all a newcomer needs; the rest is for those who work on Outrider.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The tests start hundreds of programs, each of which would compile all of Outrider anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test soak check static bench format clean

run: $(VENV)/installed-run  ## a game and a benchmark solved by the built-in policy: no key, no server, no GPU
	@$(BIN)/outrider run --mode FrozenLake --limit 24 --num-rollouts 8 --model 'builtin:solver?latency=0.2'
	@$(BIN)/outrider run --mode math --num-rollouts 8 --model 'builtin:solver?latency=0.2'
	@echo "Open the page named last in a browser, or: $(BIN)/outrider view results/RUN"

test: $(VENV)/installed-test static  ## everything, as CI runs it
	$(BIN)/pytest -n 4 --dist worksteal

soak: $(VENV)/installed-test  ## long chaos, thousands of simulated schedules: half an hour, written to bench/RESULTS.md
	$(BIN)/python bench/soak.py

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
	@$(PIP) --editable '.[math]'
	@touch $@

$(VENV)/installed-test: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing Outrider and what its tests need into $(VENV) …"
	@$(PIP) --editable '.[test,check]'
	@sh scripts/install-system-packages.sh gcc libc6-dev bubblewrap chromium docker.io iproute2 \
		xvfb openbox xterm nano wmctrl hsetroot x11-utils x11-xserver-utils xdg-utils fontconfig fonts-dejavu-core \
		qemu-system-x86 qemu-utils ovmf squashfs-tools linux-image-cloud-amd64 busybox-static \
		xserver-xorg-core xserver-xorg-video-fbdev xserver-xorg-input-evdev
	@touch $@ $(VENV)/installed-run
