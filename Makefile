# Everything a fresh machine with Python 3.11 needs is made here; nothing is installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run quick quick-pure quick-first quick-second test check-flaky soak mutation check check-types check-rest conformance bench pictures clean

help:
	@echo "make run          start a node with a small example tree and say what to try"
	@echo "make quick        run the tests that start no process"
	@echo "make test         run all tests"
	@echo "make check-flaky  the same, and fail where a test passed only when run again alone"
	@echo "make soak         servers killed under load, long fuzzing; writes docs/soak.md"
	@echo "make mutation     break what ledger entries say; count what their tests do not notice"
	@echo "make check        format, lint, types, architecture, generated files"
	@echo "make conformance  other people's suites against Interlock"
	@echo "make pictures     draw the pictures of docs/console.md again, from its tests"
	@echo "make bench        cost per call against nginx and others; writes docs/benchmarks.md"

# The product alone, for `make run`.
$(VENV)/.product: pyproject.toml
	@$(PYTHON) install.py $(VENV)
	@touch $@

# What developing it needs as well: the `dev` group of pyproject.toml.
$(VENV)/.dev: $(VENV)/.product
	@$(PYTHON) install.py $(VENV) --group dev
	@touch $@

# The example is copied: what `interlock init` adds to the configuration, and what servers write, is yours.
.run/tree/interlock.toml:
	@mkdir -p .run/tree
	@cp -R examples/tree/. .run/tree

run: $(VENV)/.product .run/tree/interlock.toml
	@./interlock serve $(ARGS)

# A browser for the tests of pages, where packages can be installed; elsewhere they are skipped, and say so.
$(VENV)/.browser: $(VENV)/.dev
	@command -v chromium >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium for the tests of pages" && \
		{ apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium; } \
			> $(VENV)/browser.log 2>&1; } \
		|| echo "NO BROWSER: chromium is not here and cannot be installed; the tests of pages in it are skipped"
	@touch $@

# A sandbox for servers, likewise.
$(VENV)/.sandbox: $(VENV)/.dev
	@command -v bwrap >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing bubblewrap for the tests of sandboxes" && \
		{ apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install bubblewrap; } \
			> $(VENV)/sandbox.log 2>&1; } \
		|| echo "NO SANDBOX: bubblewrap is not here and cannot be installed; the tests of servers in it are skipped"
	@touch $@

# Compilers and emulators of chips, a broker and a bus for the tests of devices, likewise.
CHIP_PROGRAMS := avr-gcc arm-none-eabi-gcc sdcc s51 qemu-system-avr qemu-system-arm simavr mosquitto socat
CHIP_PACKAGES := gcc-avr avr-libc gcc-arm-none-eabi sdcc sdcc-ucsim qemu-system-misc qemu-system-arm simavr libsimavr-dev libelf-dev mosquitto socat
$(VENV)/.devices: $(VENV)/.dev
	@( for each in $(CHIP_PROGRAMS); do command -v $$each >/dev/null || exit 1; done; test -e /usr/include/simavr/sim_avr.h ) || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing what the tests of devices run on" && \
		{ apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $(CHIP_PACKAGES); } \
			> $(VENV)/devices.log 2>&1; } \
		|| echo "NO CHIPS: $(CHIP_PROGRAMS) are not all here and cannot be installed; the tests of devices on them are skipped"
	@touch $@

# Many tests start nodes and hold them to times. What fails beside others is run once more, alone: a fault fails again,
# and what passes then is named FLAKY. The slowest files come first, as tests/durations.json has them.
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# Two workers more than there are cores, because tests wait for other processes half of their time; five at most.
PARALLEL := --numprocesses=$(shell expr $(CORES) + 2) --maxprocesses=5 --dist=loadfile --no-loadscope-reorder

# These tests start no process. Properties are tried with fewer examples than in `make test`. Three runs beside each
# other are faster than workers, each of which would collect all tests; those in process wait half of their time. Files
# are in memory where the machine offers that.
QUICK := TESTS_QUICK=1 $(if $(wildcard /dev/shm),PYTEST_DEBUG_TEMPROOT=/dev/shm) $(BIN)/python -m pytest --quiet

quick: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j3 quick-pure quick-first quick-second

quick-pure: $(VENV)/.dev
	@$(QUICK) -o cache_dir=.pytest_cache/pure $(wildcard tests/*/pure tests/*/fuzz) tests/config/in_process \
		tests/test_words.py tests/test_newcomer.py $(ARGS)

QUICK_FIRST := $(wildcard tests/[a-c]*/in_process tests/[e-m]*/in_process)

quick-first: $(VENV)/.dev
	@$(QUICK) -o cache_dir=.pytest_cache/first $(filter-out tests/config/in_process,$(QUICK_FIRST)) $(ARGS)

quick-second: $(VENV)/.dev
	@$(QUICK) -o cache_dir=.pytest_cache/second $(filter-out $(QUICK_FIRST),$(wildcard tests/*/in_process)) $(ARGS)

test: $(VENV)/.browser $(VENV)/.sandbox $(VENV)/.devices
	@$(BIN)/python tests/twice.py tests --ignore=tests/conformance $(PARALLEL) $(ARGS)

check-flaky: $(VENV)/.browser $(VENV)/.sandbox $(VENV)/.devices
	@$(BIN)/python tests/twice.py --flaky=fail tests --ignore=tests/conformance $(PARALLEL) $(ARGS)

# The types take as long as everything else together, so that both run at once.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 check-types check-rest

check-types: $(VENV)/.dev
	@$(BIN)/mypy

check-rest: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m pytest --quiet tests/test_architecture.py tests/test_words.py tests/test_newcomer.py
	@$(BIN)/python tools/conformance.py --check
	@$(BIN)/python tools/ax_reference.py --check
	@$(BIN)/python tools/operator_api.py --check
	@$(BIN)/python tools/commands_reference.py --check

conformance: $(VENV)/.dev $(VENV)/.sandbox
	@$(BIN)/python tests/twice.py tests/conformance $(PARALLEL) $(ARGS)

soak: $(VENV)/.dev
	@$(BIN)/python -m tests.soak $(ARGS)

mutation: $(VENV)/.dev $(VENV)/.sandbox
	@$(BIN)/python -m tests.mutation $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m bench --write $(ARGS)

# The pictures of docs/console.md, by the tests that show what they show.
pictures: $(VENV)/.browser
	@INTERLOCK_PICTURES=docs/pictures $(BIN)/python -m pytest --quiet tests/operator/processes/console

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
