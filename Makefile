# What a developer, pre-commit and CI call. `make` alone lists the targets.
#
#   PYTHON        the Python (3.11 or newer) that the virtual environment is made from
#   TORCH         another torch than the one pinned in constraints.txt, such as TORCH=torch==2.12.1
#   TORCH_INDEX   the address of a package index to take torch from, such as one with CPU builds only
#   ARGS          more arguments for pytest, for `nbest serve` and for the demo
# A changed TORCH or TORCH_INDEX takes effect with `make -B setup`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BUNDLE ?= demo/bundle
IMAGE ?= nbest-rescoring:local
TORCH ?=
TORCH_INDEX ?=
ARGS ?=
CRASHES ?= 100

INSTALLED := $(VENV)/.installed
KENLM := $(VENV)/.kenlm
SCRIPTS := $(wildcard scripts/*.sh) .ci/run

.PHONY: help setup kenlm demo test test-quick test-crash test-sctk check-wheel lint lint-python lint-shell lint-docker format openapi serve \
	ptb results protocols bench bench-decision bench-dynamic bench-engine bench-evaluation bench-output-layers bench-service bench-training bench-tuning docker-build docker-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

# --- setting up -------------------------------------------------------------------------------------------------------

setup: $(INSTALLED) ## make the virtual environment and install everything pinned in constraints.txt

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(strip $(TORCH)$(TORCH_INDEX)),)
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') '$(or $(TORCH),$(shell grep '^torch==' constraints.txt))'
endif
	$(if $(TORCH),grep -v '^torch==',cat) constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet -c $(VENV)/constraints.txt -e '.[dev]'
	@touch $@

kenlm: $(KENLM) ## build KenLM's programs (lmplz, build_binary, query) into the virtual environment

$(KENLM): scripts/build-kenlm.sh | $(INSTALLED)
	scripts/build-kenlm.sh $(VENV)
	@touch $@

# --- using ------------------------------------------------------------------------------------------------------------

demo: $(INSTALLED) $(KENLM) ## train, serve, rescore and evaluate real speech; writes demo/results.json
	$(BIN)/python examples/ljspeech/demo.py $(ARGS)

serve: $(INSTALLED) ## serve the bundle BUNDLE (default: the demo's)
	$(BIN)/nbest serve '$(BUNDLE)' $(ARGS)

# --- checking ---------------------------------------------------------------------------------------------------------

test: $(INSTALLED) $(KENLM) check-wheel ## the bare wheel, then every test, the slow ones too
	$(BIN)/pytest $(ARGS)

test-crash: $(INSTALLED) ## kill the service CRASHES times (100) at random and compare every session with an uninterrupted run
	CRASHES='$(CRASHES)' $(BIN)/pytest -m crash $(ARGS)

test-sctk: $(INSTALLED) ## compare with NIST's sclite and sc_stats; installs Debian's sctk where it is missing (as root)
	command -v sctk >/dev/null || { apt-get update -qq && apt-get install -yqq --no-install-recommends sctk >/dev/null; }
	$(BIN)/pytest -m sctk $(ARGS)

test-quick: $(INSTALLED) $(KENLM) ## the tests that take a second or less each
	$(BIN)/pytest -m 'not slow' $(ARGS)

check-wheel: $(INSTALLED) ## that the wheel without extras is light and says what an extra would bring
	scripts/check-wheel.sh $(VENV)

lint: lint-python lint-shell lint-docker ## everything a reviewer should not have to look at

lint-python: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-shell: $(INSTALLED)
	$(BIN)/shellcheck $(SCRIPTS)

lint-docker: $(INSTALLED)
	$(BIN)/hadolint Dockerfile
	scripts/lint-compose.sh

format: $(INSTALLED) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

openapi: $(INSTALLED) ## write docs/openapi.json anew
	$(BIN)/python -m service.openapi docs/openapi.json

# --- measuring --------------------------------------------------------------------------------------------------------

ptb: $(INSTALLED) $(KENLM) ## Penn Treebank perplexities; PTB=DIR holds the three text files
	@test -n '$(PTB)' || { echo 'name the folder of the three Penn Treebank files: make ptb PTB=DIR' >&2; exit 2; }
	$(BIN)/python benchmarks/ptb.py --data '$(PTB)' $(ARGS)

results: $(INSTALLED) $(KENLM) ## word error rates with the whole text; DATA=DIR holds texts and N-best lists
	@test -n '$(DATA)' || { echo 'name the folder of the texts and N-best lists: make results DATA=DIR' >&2; exit 2; }
	$(BIN)/python benchmarks/full_text.py --data '$(DATA)' $(ARGS)

protocols: $(INSTALLED) $(KENLM) ## sessions compared, one switch at a time, on the demo's models; DATA=DIR holds the N-best lists
	@test -n '$(DATA)' || { echo 'name the folder of the N-best lists: make protocols DATA=DIR' >&2; exit 2; }
	$(BIN)/python benchmarks/protocols.py --data '$(DATA)' $(ARGS)

bench-decision: $(INSTALLED) ## word errors of the decision rules, worth of word confidences; DATA=DIR as for `protocols`, BUNDLE=DIR
	@test -n '$(DATA)' || { echo 'name the folder of the N-best lists: make bench-decision DATA=DIR' >&2; exit 2; }
	$(BIN)/python benchmarks/decision_rules.py --data '$(DATA)' --bundle '$(BUNDLE)' $(ARGS)

bench: bench-engine bench-output-layers bench-dynamic bench-tuning bench-service $(if $(PTB),bench-training) ## all speeds; with PTB=DIR that of training, too

bench-dynamic: $(INSTALLED) ## speed of learning along every hypothesis, and what a session costs
	$(BIN)/python benchmarks/dynamic.py $(ARGS)

bench-engine: $(INSTALLED) $(KENLM) ## speed of rescoring part by part, against plain torch and the machine's limit
	$(BIN)/python benchmarks/engine.py $(ARGS)

bench-evaluation: $(INSTALLED) ## time and memory of `nbest evaluate` on 100,000 lists of 100 hypotheses
	$(BIN)/python benchmarks/evaluation.py $(ARGS)

bench-output-layers: $(INSTALLED) ## speed of full, class-factored and normaliser-free output; with PTB=DIR perplexities, too
	$(BIN)/python benchmarks/output_layers.py $(if $(PTB),--train '$(PTB)') $(ARGS)

bench-service: $(INSTALLED) $(KENLM) ## latency, throughput, refusals and HTTP's share of the service under load
	$(BIN)/python benchmarks/service.py $(ARGS)

bench-training: $(INSTALLED) ## words/s of training, and the time to a known perplexity; PTB=DIR as for `ptb`
	@test -n '$(PTB)' || { echo 'name the folder of the three Penn Treebank files: make bench-training PTB=DIR' >&2; exit 2; }
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/training.py --data '$(PTB)' $(ARGS)

bench-tuning: $(INSTALLED) ## speed of the exact line search against a grid, and the seconds of all of the tuning
	$(BIN)/python benchmarks/tuning.py $(ARGS)

# --- containers -------------------------------------------------------------------------------------------------------

docker-build: ## build the image IMAGE
	docker build --build-arg TORCH_SPEC='$(TORCH)' --build-arg TORCH_INDEX='$(TORCH_INDEX)' -t '$(IMAGE)' .

docker-check: ## build the image, train and serve in it for real (as root on Debian: brings its own engine)
	scripts/docker-check.sh

clean: ## remove what was built and trained, and the virtual environment
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
