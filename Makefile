# Four commands: run, test, check, bench. Each installs what it needs into .venv first.
#
#   make run HOST=0.0.0.0 PORT=8080         the page and the WebSocket
#   make test ARGS="-k subtitles"           all tests, or some
#   make run TORCH_INDEX=URL                torch from another package index; PyTorch's own CPU index, named on its
#                                           installation page, saves a Linux machine without a GPU some gigabytes

HOST ?= localhost
PORT ?= 7860
ARGS ?=
TORCH_INDEX ?=
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

VENV := .venv
TORCH := torch>=2.6,<2.14
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test check bench chromium portaudio clean

run: $(VENV)/.installed-tiny-en
	$(BIN)/tickscribe serve --host $(HOST) --port $(PORT) $(ARGS)

test: $(VENV)/.installed-test chromium portaudio
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-bench
	$(BIN)/tickscribe bench encoder $(ARGS)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; install it, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	@echo "Installing tickscribe[$*] into $(VENV); the first time takes some minutes."
	$(if $(TORCH_INDEX),$(PIP) --index-url $(TORCH_INDEX) '$(TORCH)')
	$(PIP) --editable '.[$*]'
	@touch $@

# A browser for the page's tests: the one on PATH, else Debian's, else Playwright's.
chromium: $(VENV)/.installed-test
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	     && apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium; } \
	|| $(BIN)/playwright install chromium

# The microphone's library; only root can install it, and the tests that need it are skipped without.
portaudio:
	@test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || ldconfig -p | grep -q libportaudio \
	|| { apt-get update -qq && apt-get install -qq --yes --no-install-recommends libportaudio2; }

clean:
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
