# `make demo` and `make test` do everything on a fresh machine; the other verbs are for development.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := packages/esper-env packages/esper-agent

.PHONY: help demo test install lint type format docs bench ledger wheels release-check version lowest newest portable mutants soak integrations site cuda clean

help:  ## list the verbs
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(STAMP): constraints.txt requirements-dev.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		$(addprefix -e ,$(PACKAGES)) -r requirements-dev.txt
	touch $@

install: $(STAMP)  ## create .venv and install both packages into it, editable

demo: $(STAMP)  ## train briefly, compare with baselines, draw a picture
	$(BIN)/python benchmarks/demo.py

# A process per core with one thread each; tests of one file stay together.
test: lint type  ## everything that CI checks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not soak and not cuda"

lint: $(STAMP)  ## ruff, and import-linter: data flows one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

format: $(STAMP)  ## apply ruff's fixes and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)  ## write the pages of docs/ that are made from the code
	$(BIN)/python docs/generate.py

site: docs  ## the documentation as a site in dist/site; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html docs dist/site
	$(BIN)/python tests/check_site.py dist/site

bench: $(STAMP)  ## measure speed, quickly; full runs write benchmarks/results
	$(BIN)/python benchmarks/engine_throughput.py --quick --json dist/bench/engine.json
	$(BIN)/python benchmarks/env_throughput.py --quick --json dist/bench/env.json
	$(BIN)/python benchmarks/agent_throughput.py --quick --json dist/bench/agent.json

wheels: $(STAMP)  ## build both sdists, and the wheels from them
	rm -rf dist/wheels
	for package in $(PACKAGES); do $(BIN)/python -m build --no-isolation --outdir dist/wheels $$package || exit 1; done

release-check: wheels  ## check metadata, try each wheel in fresh venvs, alone and with extras, and run its README there
	$(BIN)/python -m twine check --strict dist/wheels/*
	$(BIN)/python tests/check_wheels.py dist/wheels constraints.txt

version: $(STAMP)  ## make version TO=0.2.0 moves both packages and the citation
	$(BIN)/python .ci/set_version.py $(TO)

lowest newest: $(STAMP)  ## try both packages with these of the versions that they allow, in a fresh venv
	$(BIN)/python tests/check_versions.py $@

portable: $(STAMP)  ## the suite under every processor that this one can imitate, with one and two threads
	$(BIN)/python tests/portable.py

mutants: $(STAMP)  ## faults put into a copy of the code, one by one: the test of each must fail
	OMP_NUM_THREADS=1 $(BIN)/python tests/check_mutants.py

ledger: $(STAMP)  ## which rows of tests/ledger.md are proven by a passing test
	$(BIN)/python -m pytest --ledger -m "not soak and not cuda"

soak: $(STAMP)  ## long runs that look for leaks
	$(BIN)/python -m pytest -m soak

integrations: $(STAMP)  ## the recipes of heavy libraries, each library in an environment of its own
	OMP_NUM_THREADS=1 $(BIN)/python tests/check_integrations.py

cuda: $(STAMP)  ## where there is a GPU: its tests of engine and agent, and the table of throughput
	$(BIN)/python -m pytest -m cuda
	$(BIN)/python benchmarks/env_throughput.py --device cuda

clean:  ## remove what the other verbs made
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
