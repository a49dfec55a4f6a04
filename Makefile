# The commands of the house. Each works from a fresh clone with Python 3.11+, gcc and make.

PYTHON ?= python3
VENV   ?= .venv
SEARCH ?=
VERSIONS ?=
PYTHONS ?=
CHAOS  ?=
FUZZ   ?=
EXAMPLES ?=
WHEELS ?=
INSTALL ?=
GPU    ?=
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test test-thorough bless check lint chaos fuzz format install extensions versions pythons examples docs docs-serve gpu-wheels gpu-accept gpu-offline record keys constructors clean

help:  ## what `make` can do
	@sed -n 's/^\([a-z-]*\):.*  ## /\1: /p' Makefile

demo: extensions  ## search on this machine's own devices; ends with a table and files
	$(BIN)/python -m autotune search --yes $(SEARCH)

# One thread per rank: two CPU ranks on two cores would otherwise fight for them. Tests with real
# ranks take turns in two groups, those of fleets and faults, which wait much, beside all others.
# Both groups begin first; a worker without a group takes a file at a time.
# A test with real ranks that fails runs once more, for at most 10 tests of a run.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --durations 60 --max-suite-reruns 10

test: extensions  ## the tests of every change
	$(PYTEST) -m 'not thorough'

test-thorough: extensions  ## all others that can run here: minutes more of real ranks
	$(PYTEST) -m thorough

check: lint  ## lint, types and the direction of imports
	$(BIN)/python -m pytest -q tests/test_architecture.py

lint: install  ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# CI runs a short form of both among the tests. With flags `chaos` only injects, and without both
# run whatever comes of the first. Flags are those of pytest: `make chaos CHAOS="-k 'nodes and
# clock'"`. No fault has a second attempt here.
INJECTED = -p no:rerunfailures tests/chaos/test_chaos.py::test_it_is_survived

chaos: extensions  ## faults for trials and coordinators; without flags also broken files
	AUTOTUNE_CHAOS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(INJECTED) $(CHAOS); injected=$$?; \
	$(if $(CHAOS),,$(RUN_FUZZ) &&) exit $$injected

RUN_FUZZ = $(BIN)/python -m tests.chaos.fuzz $(FUZZ)

fuzz: install  ## broken files for every reader
	$(RUN_FUZZ)

docs: install  ## the documentation as a site, in build/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: install  ## the same, on loopback, built again as you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

bless: extensions  ## writes the frozen words and files anew; read the diff
	AUTOTUNE_WRITE_GOLDEN=1 $(BIN)/python -m pytest -q $(shell grep -rl --include='*.py' 'snapshots\.check' tests)

format: install  ## the code as ruff writes it, with what it can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(STAMP)  ## this checkout and what it needs, in VENV (.venv)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	-$(BIN)/python -m pip install --quiet --upgrade pip  # the one of Python 3.11 takes twice as long
	$(BIN)/python -m pip install --quiet $(INSTALL) --constraint constraints.txt --editable '.[dev]'
	touch $@

extensions: install  ## DeepSpeed's compiled extensions, built once
	$(BIN)/python -m autotune doctor --build

# Two minutes each, and once some more to install and to compile; kept in the user's cache.
versions: install  ## the reality tests with older releases; `make versions VERSIONS=0.16` for one DeepSpeed
	$(BIN)/python -m tests.versions.run $(VERSIONS)
	$(if $(VERSIONS),,$(BIN)/python -m tests.versions.megatron)

# Five to nine minutes each, and once one more to install; `PYTHONS=--short`, as in CI, a minute each.
pythons: install  ## what needs no torch, with newer Pythons where they are; `make pythons PYTHONS=3.13` for one
	$(BIN)/python -m tests.versions.pythons $(PYTHONS)

# Minutes each; those with pins of their own once some more to install and to compile.
examples: extensions  ## every example under diagnose and search; `make examples EXAMPLES=trl` for one
	$(BIN)/python -m tests.examples.run $(EXAMPLES)

# For a machine without a package index: all that one with Python 3.12 and the packages of docs/gpu.md lacks.
gpu-wheels: install  ## a folder of wheels for `make gpu-accept WHEELS=FOLDER`
	$(BIN)/python -m tests.gpu.wheels $(or $(WHEELS),build/gpu-wheels)

# Stages that leave all that they measured in one folder; the same again goes on. WHEELS is a folder of wheels
# where there is no index: the packages of the Python that runs this are used beside them.
ifneq (,$(findstring --rehearse,$(GPU)))
gpu-accept: extensions
	$(BIN)/python -m tests.gpu.rehearse $(filter-out --rehearse,$(GPU))
else
gpu-accept: $(if $(WHEELS),gpu-offline,extensions)  ## all that one GPU can answer, in pieces of minutes
	$(BIN)/python -m tests.gpu.accept $(GPU)
endif

gpu-offline:
	$(PYTHON) -m tests.gpu.offline $(VENV) $(WHEELS)

# On what the knobs were tried: two CPU ranks here. Of any study, such as `make demo` or one on GPUs:
# `python -m tests.record_tried results/STUDY > results/recorded/knobs-DEVICES-STUDY.json`.
record: extensions  ## every knob, tried on this machine's two CPU ranks
	$(BIN)/python -m tests.record_knobs deepspeed > results/recorded/knobs-cpu-2.json
	$(BIN)/python -m tests.record_knobs megatron > results/recorded/knobs-cpu-2-megatron.json

keys: install  ## the keys of a ds_config, asked of the installed DeepSpeed
	$(BIN)/python -m tests.record_keys

constructors: extensions  ## what optimizers and schedulers take, asked of the installed ones
	$(BIN)/python -m tests.record_constructors

clean:  ## removes builds and caches
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
