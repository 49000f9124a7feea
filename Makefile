PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test test-sglang lint fmt captures cases calibrate contest clean

help:  ## what can be made here
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("kvtune needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo "installing what kvtune needs into $(VENV): a few minutes, once" >&2
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[dev]'
	touch $@

setup: $(BIN)/.ready  ## make the virtual environment

demo: setup  ## run the main job on the simulated engine (about two minutes)
	$(BIN)/kvtune-auto --budget 2h --config examples/demo.yaml

test: setup  ## the tests that need nothing but this machine
	$(BIN)/python -m pytest

test-sglang: setup  ## install a real SGLang on the CPU (once, in the user's cache) and test against it
	sh scripts/with-cpu-sglang $(BIN)/python -m pytest -m sglang

lint: setup  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-%: setup  ## run bench/NAME and print its figures
	$(BIN)/python -m bench.$(subst -,_,$*)

cases: setup  ## run the field cases (CASES=DIR for another set)
	$(BIN)/python -m bench.cases $(CASES)

captures: setup  ## read the captured server logs (CAPTURES=DIR for others)
	$(BIN)/python -m bench.captures $(CAPTURES)

calibrate: setup  ## hold the simulated engine against what real servers showed
	$(BIN)/python -m bench.calibrate

contest: setup  ## the search against its rivals (PRESETS="a.yaml b.yaml" SEEDS=5)
	$(BIN)/python -m bench.contest $(if $(PRESETS),--presets $(PRESETS)) $(if $(SEEDS),--seeds $(SEEDS))

clean:  ## remove what the other targets made here
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
