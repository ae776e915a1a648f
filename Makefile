# Two commands do everything: `make demo` shows what works, `make test` proves it.
# `make help` lists the rest. Nothing here needs more than git, make, gcc, Rust and python3;
# what a target needs beyond that it installs (Debian packages when root) or asks for.

.DEFAULT_GOAL := help
.PHONY: help demo test check python objects-full faults unit docs model sim sanitize fuzz bench-channels bench-cluster bench-python bench-objects clean packages

CARGO ?= cargo
# nextest runs tests side by side; without it plain `cargo test` does.
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
ifeq ($(NEXTEST),yes)
RUN_TESTS := $(CARGO) nextest run --no-fail-fast
else
RUN_TESTS := $(CARGO) test --tests --no-fail-fast
endif

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

demo: ## a local cluster, one that loses a worker under load, channels; learning in Python with processes killed, 1 GB shared by tasks
	@echo "-- the examples are compiled: a few minutes the first time"
	$(CARGO) run --quiet --release -p marline --example tour
	$(CARGO) run --quiet --release -p marline --example ledger
	$(CARGO) run --quiet --release -p marline-channel --example pipeline
	scripts/demo-python

# Who is root can make namespaces and mount: tests that need to are not skipped, unless told so.
AS_ROOT := $(if $(filter 0,$(shell id -u)),1)

test: export MARLINE_REQUIRE_VALGRIND = 1
test: export MARLINE_REQUIRE_NAMESPACES := $(or $(MARLINE_REQUIRE_NAMESPACES),$(AS_ROOT))
test: packages check python docs model sanitize ## everything that must pass (CONTRIBUTING.md has the time budget)
	@echo "make test: all rings passed"

check: ## the quick loop: format, lints, unit and conformance tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-features --all-targets -- -D warnings
	$(CARGO) clippy -p marline-channel --no-default-features --lib -- -D warnings
	$(RUN_TESTS) --workspace --all-features
	$(RUN_TESTS) -p marline-channel --no-default-features --lib
	$(CARGO) test --workspace --all-features --doc --quiet

python: ## the Python package, as users install it; the worker contract, from Python
	scripts/test-package
	scripts/test-python

objects-full: export MARLINE_REQUIRE_NAMESPACES := $(or $(MARLINE_REQUIRE_NAMESPACES),$(AS_ROOT))
objects-full: ## what is promised of large values, at full size: 200 kills, 2 GB, long cuts
	MARLINE_CHAOS_ROUNDS=200 scripts/test-package tests/package/test_objects_killed.py
	MARLINE_LARGE_BYTES=2000000000 scripts/test-package tests/package/test_objects_large.py
	MARLINE_CUT_SECONDS=24 scripts/test-package tests/package/test_objects_nodes.py

faults: ## every process but the controller killed and frozen at random for SECONDS=300, strangers at every port; SEED=n replays
	MARLINE_FAULTS_SECONDS=$(or $(SECONDS),300) $(if $(SEED),MARLINE_FAULTS_SEED=$(SEED)) \
		scripts/test-package -s tests/package/test_faults.py

unit: ## only the tests inside the crates' sources
	$(RUN_TESTS) --workspace --all-features --lib

docs: ## the API documentation, without a warning, and the examples
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps --quiet
	$(CARGO) run --quiet --release -p marline-channel --example pipeline >/dev/null
	$(CARGO) run --quiet --release -p marline --example tour >/dev/null
	$(CARGO) run --quiet --release -p marline --example ledger >/dev/null

sim: ## the simulator that kills everything, on SEEDS=1000 fresh seeds, or for MINUTES=60
	$(CARGO) run --quiet --release -p marline-sim -- $(if $(MINUTES),--minutes $(MINUTES),--seeds $(or $(SEEDS),1000))

model: ## the model checker on the channel's protocols, and on each with one step left out
	RUSTFLAGS="--cfg marline_model" CARGO_TARGET_DIR=target/model \
		$(CARGO) test --release -p marline-channel --test model --quiet
	RUSTFLAGS="--cfg marline_model" CARGO_TARGET_DIR=target/model \
		$(CARGO) test --release -p marline-channel-c --lib model --quiet

sanitize: ## a short run under ThreadSanitizer, where a nightly compiler is installed
	scripts/sanitize

fuzz: ## the cancellation fuzz, TIMES=20 times as long as in `make test`
	MARLINE_FUZZ=$(or $(TIMES),20) $(RUN_TESTS) -p marline-channel --release --test interleave --test threads

bench-channels: ## the channel benchmark against ten rivals; writes target/bench/channels.json
	scripts/bench-channels $(ARGS)

bench-cluster: ## tasks, calls, actors, failures and decisions, against tonic and tokio; writes target/bench/cluster.json
	scripts/bench-cluster $(ARGS)

bench-python: ## the Python package against Ray, Dask, process pools and raw sockets; writes target/bench/python.json
	scripts/bench-python $(ARGS)

bench-objects: ## large values against Ray, a plain copy and a plain socket; writes target/bench/objects.json
	scripts/bench-objects $(ARGS)

packages:
	scripts/packages valgrind iproute2

clean: ## removes everything that was built
	$(CARGO) clean
