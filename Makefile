# `make demo` shows what works, and `make test` runs all tests. `make help` lists all targets.
# Needs git, make, gcc, Rust and python3. A target that needs a Debian package installs it as root;
# otherwise it prints the command that installs it.

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check python objects-full faults unit docs site model sim sanitize fuzz bench-channels bench-cluster bench-python bench-objects clean packages

CARGO ?= cargo
# cargo-nextest runs tests in parallel. Without it, `cargo test` runs them.
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
ifeq ($(NEXTEST),yes)
BUILD_TESTS := $(CARGO) nextest run --no-run
RUN_TESTS := $(CARGO) nextest run --no-fail-fast
else
BUILD_TESTS := $(CARGO) test --tests --no-run
RUN_TESTS := $(CARGO) test --tests --no-fail-fast
endif

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

demo: ## run examples: a local cluster, a killed worker under load, channels; in Python, learning with killed processes, and 1 GB of shared memory
	@echo "-- compiling the examples: a few minutes the first time"
	$(CARGO) run --quiet --release -p marline --example tour
	$(CARGO) run --quiet --release -p marline --example ledger
	$(CARGO) run --quiet --release -p marline-channel --example pipeline
	scripts/demo-python

# Root can create namespaces and mount. So as root no test that needs this may be skipped, unless the
# variable says so.
AS_ROOT := $(if $(filter 0,$(shell id -u)),1)

test: export MARLINE_REQUIRE_VALGRIND = 1
test: export MARLINE_REQUIRE_NAMESPACES := $(or $(MARLINE_REQUIRE_NAMESPACES),$(AS_ROOT))
test: ## run everything that must pass, and print how long it took (CONTRIBUTING.md has the time budget)
	@scripts/rings packages check python docs model sanitize

test-full: export SEEDS := $(or $(SEEDS),5000)
test-full: ## run the claims of `make test` at full size: large values, random faults, 5,000 seeds, fuzz; about an hour
	@scripts/rings packages objects-full faults sim fuzz

check: ## run the quick checks: format, lints, unit and conformance tests
	scripts/ring check/format $(CARGO) fmt --all --check
	scripts/ring check/lints $(CARGO) clippy --workspace --all-features --all-targets -- -D warnings
	scripts/ring check/lints $(CARGO) clippy -p marline-channel --no-default-features --lib -- -D warnings
	scripts/ring check/build $(BUILD_TESTS) --workspace --all-features
	scripts/ring check/build $(BUILD_TESTS) -p marline-channel --no-default-features --lib
	scripts/ring check/run $(RUN_TESTS) --workspace --all-features
	scripts/ring check/run $(RUN_TESTS) -p marline-channel --no-default-features --lib
	scripts/ring "check/examples in comments" $(CARGO) test --workspace --all-features --doc --quiet

python: ## test the Python package as users install it, and the worker protocol with a worker in Python
	scripts/test-package
	scripts/ring "python/contract tests" scripts/test-python

objects-full: export MARLINE_REQUIRE_NAMESPACES := $(or $(MARLINE_REQUIRE_NAMESPACES),$(AS_ROOT))
objects-full: ## test large values at full size: 200 kills, 2 GB, long network cuts
	MARLINE_CHAOS_ROUNDS=200 scripts/test-package tests/package/objects/test_objects_killed.py
	MARLINE_LARGE_BYTES=2000000000 scripts/test-package tests/package/objects/test_objects_large.py
	MARLINE_CUT_SECONDS=24 scripts/test-package tests/package/objects/test_objects_nodes.py

faults: ## kill and freeze processes (not the controller) at random for SECONDS=300, with strangers at every port; SEED=n replays
	MARLINE_FAULTS_SECONDS=$(or $(SECONDS),300) $(if $(SEED),MARLINE_FAULTS_SEED=$(SEED)) \
		scripts/test-package -s tests/package/faults/test_faults.py

unit: ## run only the tests inside the sources of the crates
	$(RUN_TESTS) --workspace --all-features --lib

docs: ## build the API documentation without a warning, and run the examples
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps --quiet
	$(CARGO) build --quiet --workspace --all-features --examples
	for example in pipeline tour ledger; do $${CARGO_TARGET_DIR:-target}/debug/examples/$$example >/dev/null || exit 1; done

site: ## build the documentation site into target/site, and check its links; ARGS=serve shows it
	scripts/site $(ARGS)

sim: ## run the simulator, which injects faults of every kind, on SEEDS=1000 new seeds, or for MINUTES=60
	$(CARGO) run --quiet --release -p marline-sim -- $(if $(MINUTES),--minutes $(MINUTES),--seeds $(or $(SEEDS),1000))

model: ## run the model checker on the protocols of the channel, and on each with one step left out
	RUSTFLAGS="--cfg marline_model" CARGO_TARGET_DIR=target/model \
		$(CARGO) test --release -p marline-channel --test model --quiet
	RUSTFLAGS="--cfg marline_model" CARGO_TARGET_DIR=target/model \
		$(CARGO) test --release -p marline-channel-c --lib model --quiet

sanitize: ## run some tests under ThreadSanitizer, if a nightly compiler is installed
	scripts/sanitize

fuzz: ## run the cancellation fuzz, TIMES=20 times as long as in `make test`
	MARLINE_FUZZ=$(or $(TIMES),20) $(RUN_TESTS) -p marline-channel --release --test interleave --test threads

bench-channels: ## benchmark channels against ten rivals; writes target/bench/channels.json
	scripts/bench-channels $(ARGS)

bench-cluster: ## benchmark tasks, calls, actors, failures and decisions against tonic and tokio; writes target/bench/cluster.json
	scripts/bench-cluster $(ARGS)

bench-python: ## benchmark the Python package against Ray, Dask, process pools and raw sockets; writes target/bench/python.json
	scripts/bench-python $(ARGS)

bench-objects: ## benchmark large values against Ray, a plain copy and a plain socket; writes target/bench/objects.json
	scripts/bench-objects $(ARGS)

packages:
	scripts/packages valgrind iproute2

clean: ## remove everything that was built
	$(CARGO) clean
