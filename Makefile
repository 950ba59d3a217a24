# `make demo` and `make test` each prepare .venv, build what changed, and run. Needs Python >= 3.10 with venv, and g++.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?= # a pip index to take torch from, if not the configured one
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
SOURCES := pyproject.toml setup.py CMakeLists.txt $(shell find csrc -type f)
CPP := $(shell find csrc tests/emulator tests/sass -name '*.h' -o -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test test-lmms format clean check-tools
.DELETE_ON_ERROR:

demo: $(VENV)/.built
	$(BIN)/seer demo

test: $(VENV)/.built $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python -m pytest

# Apart from `test`: lmms-eval brings 1.3 GB of packages.
test-lmms: $(VENV)/.lmms
	$(BIN)/python -m pytest tests/runtime/test_lmms.py

check-tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Seer needs Python 3.10 or newer as $(PYTHON): install it, or run make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) lacks venv: install it (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || \
	  { echo "Seer needs the C++ compiler $${CXX:-g++}: install it (on Debian and Ubuntu: apt install g++)." >&2; exit 1; }

$(VENV)/.torch: | check-tools
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)" $(if $(strip $(TORCH_INDEX)),--index-url $(strip $(TORCH_INDEX)))
	$(PIP) "setuptools>=77" "pybind11>=2.13" ninja "cmake>=3.24"
	@touch $@

# Editable and without isolation, so that the build folder stays warm and Python sources are used in place.
$(VENV)/.built: $(VENV)/.torch $(SOURCES)
	$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.built
	$(PIP) --no-build-isolation -e ".[dev,plot]"
	@touch $@

# A torchvision built for another torch, as PyPI's beside a CPU torch, spoils every import of transformers. The model runs
# without one.
$(VENV)/.lmms: pyproject.toml | $(VENV)/.built
	$(PIP) --no-build-isolation -e ".[lmms]" "$(TORCH)" pytest
	$(BIN)/python -c "import torchvision" 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes torchvision
	@touch $@

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf $(VENV) build dist *.egg-info seer_ext/_C*.so seer_ext/_build_info.json
