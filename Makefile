# make        builds both daemons and the command line, and changes nothing outside of this folder
# make run    installs what is missing, builds, and starts both daemons here (needs root)
# make test   installs what is missing, builds, and runs every test
# make demo   shows both daemons at work, under a minute after the build (needs root)
# make bench  measures here what fits in 20 minutes, and writes target/report/index.html
# make lab    measures everything, also in virtual machines: kernels, other daemons (an hour or more)
# make slice  the part of it that every change must pass (minutes)
# make fuzz   runs the simulator and the fuzz targets for MINUTES (60), from where it ended before
# make mutants  changes the cores at one place at a time (FILES, or those that differ from main); a test must notice each
# make lint   formatting, clippy, licences, shell scripts
# make install  installs what was built: PREFIX=/usr/local, DESTDIR= (for packages)
# make uninstall  removes what it installed
# make deb    builds Debian packages, into target/deb; for arm64 with TARGET=aarch64-unknown-linux-gnu, into target/TARGET/deb
# make test-deb  installs, upgrades and purges them on a fresh Debian with systemd, in a virtual machine (needs root)
# make build TARGET=aarch64-unknown-linux-gnu  builds for arm64, into target/TARGET/release
# make static builds the command line with the binder daemon inside, target/static/headroom, for any Linux of this
#             architecture; for arm64 with TARGET=aarch64-unknown-linux-musl, target/static/headroom-aarch64
# make test-static  runs it in root file systems of Debian and of busybox without a C library (needs root)
# make test-containers  runs containers on buses of their own by CDI, with podman and crun (needs root)
# make test-recipes  checks the GitHub Action and the Kubernetes manifests by their schemas, and runs the steps of the action
# make publish-check  packages the crates that can be published and builds each from its package; uploads nothing
# make clean  removes everything that was built

.PHONY: all run install test demo bench lab slice fuzz mutants lint clean install uninstall deb test-deb static test-static test-containers test-recipes publish-check setup setup-arm64 setup-lint setup-mutants setup-test setup-deb setup-static setup-static-test setup-containers-test setup-recipes-test build

target := $(or $(CARGO_TARGET_DIR),target)
setup_target := $(if $(filter aarch64-%,$(TARGET)),setup-arm64)
machine := $(shell uname -m)
static_target := $(or $(TARGET),$(machine)-unknown-linux-musl)
static_machine := $(firstword $(subst -, ,$(static_target)))
static := $(target)/static/headroom$(if $(filter-out $(machine),$(static_machine)),-$(static_machine))
strip := $(if $(filter-out $(machine),$(static_machine)),$(static_machine)-linux-gnu-)strip

all:
	@scripts/build --run --release

run: setup
	@scripts/build --run --release
	$(target)/release/headroom up

# All of the workspace at once, here and in `test`: another selection of packages may need other features of their
# dependencies, and then they are compiled once more.
build: setup $(setup_target)
	@scripts/build $(if $(TARGET),--target $(TARGET)) --release

setup setup-arm64 setup-lint setup-mutants setup-test setup-deb setup-static setup-static-test setup-containers-test setup-recipes-test:
	@scripts/setup $(patsubst setup-%,%,$(filter setup-%,$@))

test: setup-test
	cargo test --locked --workspace --no-run
	tests/clients/run $(target)/debug
	tests/clients/aosp/run $(target)/debug
	cargo test --locked --workspace --no-fail-fast

demo: setup-test build
	scripts/demo $(target)/release

bench: build
	scripts/bench $(target)/release $(target)/report

lab: build setup-arm64
	lab/setup
	lab/suite --out $(target)/report && failed=0 || failed=1; \
	scripts/bench $(target)/release $(target)/report || failed=1; \
	exit $$failed

slice: setup
	lab/setup
	lab/suite --quick --out $(target)/slice

fuzz: setup
	scripts/fuzz --minutes $(or $(MINUTES),60)

mutants: setup-mutants
	scripts/mutants $(FILES)

lint: setup-lint
	cargo fmt --all --check
	cargo fmt --manifest-path tests/clients/Cargo.toml --all --check
	cargo fmt --manifest-path examples/rsbinder/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/lint-shell
	scripts/lint-lines
	scripts/lint-words
	scripts/lint-client-access
	cargo run --locked --quiet --package tidy
	mandoc -T lint -W warning dist/man/*
	PATH="$$PATH:$(target)/tools/usr/bin" promtool test rules dist/prometheus/headroom.test.yml
	cargo test --locked --quiet --workspace --test dependencies

install:
	@test -x $(target)/release/headroom || { echo "nothing is built yet: make build" >&2; exit 1; }
	DESTDIR="$(DESTDIR)" PREFIX="$(or $(PREFIX),/usr/local)" scripts/install $(target)/release

uninstall:
	DESTDIR="$(DESTDIR)" PREFIX="$(or $(PREFIX),/usr/local)" scripts/install --remove

deb: setup-deb $(setup_target)
	TARGET=$(TARGET) scripts/deb $(target)/$(if $(TARGET),$(TARGET)/)deb

test-deb: setup-test
	lab/setup
	@[ -e $(target)/deb/headroom_*.deb ] || $(MAKE) deb
	tests/packages/run $(target)/deb

static: setup-static $(setup_target)
	@scripts/build --static --target $(static_target) --release
	@mkdir -p $(target)/static
	@$(strip) --strip-all -o $(static) $(target)/$(static_target)/release/headroom
	@ls -l $(static)

test-static: setup-test setup-static-test static
	tests/static/run $(target)/static/headroom

test-containers: setup-test setup-containers-test static build
	tests/containers/run $(target)/release $(target)/static/headroom

test-recipes: setup-test setup-recipes-test static
	tests/recipes/run $(target)/static/headroom

publish-check: setup
	scripts/publish-check

clean:
	cargo clean
