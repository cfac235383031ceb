# The front door for people and CI. Every target installs what it needs first (scripts/deps.sh).
#
#   make build        the release programs, target/release/voltier and voltier-lab
#   make install      the programs, unit, completions, manual pages and guide, under PREFIX (/usr/local) below DESTDIR,
#                     after make build; make uninstall takes them away
#   make deb, make rpm   packages of them in target/packages: voltier and voltier-lab (docs/guide/install.md);
#                     VERSION, MAINTAINER='NAME <ADDRESS>'
#   make test         format, house rules, lints, documentation, every test: in a quarter of an hour; what takes
#                     longer is sampled
#   make check        the same of what changed since the last commit (BASE=REV), in a minute or two
#   make test-lab     the tests of lab/ alone; those of the product alone: cargo test
#   make test-long    before a release: make test with every sample whole (all canaries, hundreds of seeds), and
#                     licences, fuzzing, the crash test, the cross-check against md, virtual machines, the demo
#   make demo         the main job: a published test (MaxIO) on modelled drives, with a report
#   make bench        speed against named peers (docs/benchmarks.md):
#                     BENCH=cache, worst, worst-files, exports, start, parity, array, btrfs, mrc, rbd
#   make fuzz         MINUTES (10) of every fuzz target, or of TARGET (see docs/internals/fuzzing.md)
#   make fuzz-smoke   some seconds of every fuzz target
#   make sim          seeds of the simulator: SIM_SEEDS (see docs/proof.md)
#   make canaries     deliberate bugs, each of which the simulator must find: all of them
#   make deny         licences and known holes of all libraries; make test does so when Cargo.lock changes
#   make coverage     lines of the cache that the simulator runs, and those it does not
#   make cross-check-md  members of RAID 5, 6 and 10 byte for byte against those of Linux md, in a guest
#   make test-vm      Debian in QEMU with the unit and the rules of packaging/: restarts, power cuts, drives
#                     that move, come late or stay away, a full state folder: SCENARIO (see docs/proof.md)
#   make test-cluster  Ceph on the loopback address: an RBD image as a disk, locks, kill -9, a host that is pushed off
#   make test-packages  the packages in a fresh Debian: installed, upgraded under load, removed, purged
#   make crash        kill -9 and upgrades under write load, 50 times: CRASH_ROUNDS
#   make clean        removes everything that was built or written

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
.PHONY: build install uninstall deb rpm test-packages test test-lab check test-long lint docs deny doc-test unit-test \
  demo bench fuzz fuzz-smoke sim canaries coverage cross-check-md test-vm test-cluster crash clean

BENCH ?= cache
# A minute or two on two cores; a number of seeds, so that every machine runs the same.
SIM_SEEDS ?= 400
SIM_ARRAY_SEEDS ?= 500
SIM_TAKEOVERS ?= 1000
# The daemon and its command, and the laboratory beside them.
PROGRAMS := --package voltier --package voltier-lab-cli
# scripts/workspace.sh: the choice of packages and features that tests are compiled with.
FOR_TESTS := $(shell . scripts/workspace.sh && echo "$${workspace[@]}")
XTASK := cargo run --quiet --locked --package xtask --

build:
	@scripts/deps.sh build
	scripts/cargo-release.sh build --locked --release $(PROGRAMS)
	scripts/notices.sh >$${CARGO_TARGET_DIR:-target}/release/third-party-notices

PREFIX ?= /usr/local
DESTDIR ?=

install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall:
	@scripts/install.sh $@

deb rpm: build
	@scripts/deps.sh packages
	scripts/packages.sh $@

test-packages: deb rpm
	scripts/test-packages.sh

test:
	@scripts/deps.sh test
	@scripts/test.sh

test-lab:
	@scripts/deps.sh test
	@scripts/test-lab.sh

check:
	@scripts/deps.sh test
	@scripts/check.sh

test-long:
	@scripts/deps.sh test
	@scripts/test-long.sh

lint:
	cargo fmt --all --check
	$(XTASK) tidy
	cargo clippy $(FOR_TESTS) --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc $(FOR_TESTS) --no-deps

deny:
	scripts/deny.sh

# The commands shown in README.md and docs/guide, run as a reader would run them.
doc-test:
	$(XTASK) doc-test

unit-test:
	scripts/run-tests.sh

# Freed memory is kept: giving it back to the kernel takes as long as the simulated worlds themselves.
canaries:
	VOLTIER_TEST_LONG=1 MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=268435456 RUST_BACKTRACE=0 \
	  cargo test --locked --package voltier-sim --features canaries --test it -- canaries --nocapture

# COVERAGE_SEEDS swarm seeds beside the simulator's own tests.
coverage:
	@scripts/deps.sh build
	scripts/coverage.sh

# DEMO_SIZE, DEMO_SECONDS and DEMO_SSD are read by the binary: see demo/README.md.
demo:
	@scripts/deps.sh demo
	scripts/cargo-release.sh build --locked --release $(PROGRAMS)
	target/release/voltier demo

bench:
	@scripts/deps.sh $(if $(filter rbd,$(BENCH)),cluster,bench)
	cargo xtask bench $(BENCH)

fuzz:
	@scripts/deps.sh fuzz
	FUZZ_SECONDS=$$(( 60 * $(or $(MINUTES),10) )) scripts/fuzz.sh run $(TARGET)

fuzz-smoke:
	@scripts/deps.sh fuzz
	scripts/fuzz.sh smoke

sim:
	@scripts/deps.sh build
	$(XTASK) sim --seeds $(SIM_SEEDS)
	$(XTASK) sim --arrays --seeds $(SIM_ARRAY_SEEDS)
	$(XTASK) sim --takeovers --seeds $(SIM_TAKEOVERS)

cross-check-md:
	@scripts/deps.sh cross-check-md
	scripts/cross-check-md.sh

# A minute more the first time: the guest's Debian is put together, and kept in target/vm.
test-vm:
	@scripts/deps.sh vm
	$(XTASK) vm $(SCENARIO)

test-cluster:
	@scripts/deps.sh cluster
	cargo build --locked --package voltier
	scripts/test-cluster.sh

crash:
	VOLTIER_CRASH_ROUNDS=$(or $(CRASH_ROUNDS),50) \
	  cargo test --locked --package voltier --test it -- crash:: outlive_ten outlives_ten --nocapture

clean:
	cargo clean
	rm -f demo/result.json demo/report.html
