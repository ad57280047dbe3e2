# Two commands do everything on a fresh machine: `make demo` and `make test`. The rest is for those who change Causeway.
# Needs: a Debian-like machine with cargo. What else is needed is installed by apt when missing (root, or sudo).

SHELL := /bin/bash
CARGO ?= cargo
SECONDS_PER_TARGET ?= 600
NEXTEST := $(shell command -v cargo-nextest)

.PHONY: demo test check tidy bench soak fuzz deny crds package package-test image image-test release build-needs test-needs

demo: build-needs               ## a cloud and two sites, the objects of examples/, and what crosses, live
	$(CARGO) run --package causeway -- demo $(DEMO_ARGS)

test: build-needs test-needs check   ## everything, in its short form
	$(CARGO) build --workspace --all-targets
ifneq ($(NEXTEST),)
	$(CARGO) nextest run --workspace --no-fail-fast; status=$$?; .ci/skipped; \
	$(CARGO) nextest run --package causeway-gateway --features traces -E 'test(trace)' || status=$$((status ? status : $$?)); \
	exit $$status
else
	$(CARGO) test --workspace --no-fail-fast; status=$$?; \
	$(CARGO) test --package causeway-gateway --features traces trace || status=$$((status ? status : $$?)); \
	exit $$status
endif

check: build-needs tidy         ## formatting, lints, tidy: before you push
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- --deny warnings
	$(CARGO) clippy --package causeway-gateway --package causeway --features causeway/traces --all-targets -- --deny warnings

tidy:                           ## paths in documents, file headers, crate dependencies, language
	$(CARGO) xtask tidy

bench: build-needs test-needs   ## measures the API server, a fleet of 20,000 edges, links, the audit, the tunnel, the API at an edge and the console; writes docs/benchmarks.md
	bench/run

soak: build-needs test-needs    ## the long form of the tests that have one
	CAUSEWAY_SOAK=1 $(CARGO) nextest run --workspace --no-fail-fast --profile soak

fuzz: build-needs               ## every fuzz target for SECONDS_PER_TARGET seconds
	fuzz/run $(SECONDS_PER_TARGET)

deny:                           ## licences and banned crates (installs cargo-deny)
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	cargo-deny check bans licenses sources

package: build-needs            ## the Debian package, in target/package/ (installs cargo-deb)
	deploy/debian/build

package-test: build-needs       ## installs, upgrades, uses and removes the package in a clean Debian root (root; a debug build)
	deploy/debian/test "$$(PROFILE=dev deploy/debian/build | tail -1)"

image: build-needs              ## the container image from scratch, as target/package/causeway-image.tar (buildah)
	$(CARGO) build --release --package causeway
	mkdir -p target/package
	deploy/image/build $(or $(CARGO_TARGET_DIR),target)/release/causeway target/package/causeway-image.tar

image-test: build-needs         ## builds the image from a debug build and runs a cloud in it (root; buildah and containerd)
	$(CARGO) build --package causeway
	deploy/image/test $(or $(CARGO_TARGET_DIR),target)/debug/causeway

release: build-needs            ## package, tarball, bill of materials and checksums, in target/release-files/
	deploy/release

crds:                           ## writes deploy/crds/ from the types
	UPDATE=1 $(CARGO) test --quiet --package causeway-api crd

build-needs:
	@.ci/needs build

test-needs:
	@.ci/needs test
