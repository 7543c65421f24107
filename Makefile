# Every target does its own set-up; `make help` lists them. What a step needs of the machine is in tools/setup.sh.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-check test test-training e2e e2e-training e2e-upgrade bench measure measure-training measure-faults simulate policies agent check fmt clippy deny docs layout chart generate generate-check clean

CARGO ?= cargo
export CARGO_TERM_PROGRESS_WHEN ?= never
# Tools that tools/setup.sh builds.
ETO_CACHE ?= $(HOME)/.cache/elastic-training-operator
export PATH := $(ETO_CACHE)/bin:$(PATH)

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: policies ## train on this machine; the policy grows and shrinks the job and is swapped while it runs
	@tools/setup.sh python protoc
	@tools/demo.sh

demo-check: policies ## the same without a terminal, with one line for each thing that must happen
	@tools/setup.sh python protoc
	@tools/demo.sh --check

test: policies ## all unit and integration tests (a real Prometheus, etcd and registry among them; no cluster)
	@tools/setup.sh prometheus registry python protoc etcd
	$(CARGO) test --workspace --locked --no-fail-fast

test-training: ## the examples train with real torch and JAX, as processes of this machine; torchrun under real agents
	@tests/frameworks.sh

e2e: policies ## tests on a real control plane; builds it once (about 8 minutes)
	@tools/setup.sh prometheus protoc helm cluster
	@tests/e2e.sh
	@tests/install.sh

e2e-training: ## trainings with agents on two real nodes, also with real torch and JAX: resizes, kills, losses
	@tools/setup.sh protoc helm cluster registry
	@tests/training.sh

e2e-upgrade: ## an upgrade from the commit FROM=..., while a job trains: no process is restarted
	@tools/setup.sh protoc helm cluster
	@tests/training.sh --upgrade "$(FROM)"

bench: policies ## microbenchmarks and the scale run
	@tools/setup.sh prometheus protoc
	$(CARGO) bench --locked -p eto-benches

simulate: ## 10,000 stories of the simulation with faults, and each fault at each step (docs/simulation.md)
	$(CARGO) run --locked --release -p eto-sim -- --runs 10000
	$(CARGO) run --locked --release -p eto-sim -- --sweep --runs 10

measure-training: ## medians of resizes and losses on two real nodes, beside torchrun's own (benches/README.md)
	@tools/setup.sh protoc helm cluster
	@benches/training.sh

measure-faults: ## how long each fault takes to be acted on and to be over, on two real nodes (docs/faults.md)
	@tools/setup.sh protoc helm cluster faketime
	@benches/training.sh --faults

measure: policies simulate measure-training measure-faults ## long measurements on a real control plane (see benches/README.md)
	@tools/setup.sh prometheus protoc etcd cluster
	@benches/measure.sh

agent: ## build the in-pod agent as a static binary into target/agent
	@tools/build-agent.sh

policies: ## build the policies of policies/ as components into target/policies
	@tools/setup.sh wasm
	@tools/build-policies.sh

check: fmt layout clippy deny docs chart generate-check ## everything that is not a test

fmt: ## formatting
	$(CARGO) fmt --all --check -- --color never

layout: ## file and function lengths, links between documents
	@tools/lengths.sh
	@tools/links.sh

clippy: ## lints; no warning passes
	@tools/setup.sh protoc
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --test e2e --test frameworks --test torchrun --locked -- -D warnings # not among "all": plain `cargo test` leaves them out

deny: ## licences, sources and forbidden crates of the dependency tree
	@tools/setup.sh deny
	@tools/deny.sh

docs: ## the crates' documentation, without a warning
	@tools/setup.sh protoc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

chart: ## lint the Helm chart
	@tools/setup.sh helm
	@tools/chart.sh

generate: ## write the generated files (CRDs, operator.yaml)
	@tools/setup.sh protoc helm
	@tools/generate.sh write

generate-check: ## fail if a generated file is not what `make generate` writes
	@tools/setup.sh protoc helm
	@tools/generate.sh check

clean: ## remove build output of this checkout (not the shared caches)
	$(CARGO) clean
