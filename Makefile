# Two commands for most: `make run` and `make test`. Everything they make is in .venv and the folders beside it, .venv-*.

PYTHON ?= python3
VENV := .venv
CLIENTS := .venv-clients
WHEELS := .venv-wheels
ANSIBLE := .venv-ansible
OPENVINO := .venv-openvino
TENSORRT := .venv-tensorrt
BIN := $(VENV)/bin
ARGS ?=
MINUTES ?= 10
FUZZ ?= scan
PYTEST_ARGS ?=
JOBS ?= auto
PROCESSORS ?= x86_64 aarch64
# The oldest C library (glibc) that the wheels run with; maturin looks at every symbol that they use.
GLIBC := 2_17
# Which ONNX Runtime .venv has. What is there stays, unless RUNTIME says otherwise.
RUNTIME ?= $(if $(wildcard $(VENV)/lib/python*/site-packages/onnxruntime_gpu-*.dist-info),gpu,cpu)
ifeq ($(RUNTIME),gpu)
  SERVE_LOCK := requirements-gpu.lock
  OTHER_RUNTIME := onnxruntime
  TAKES := two gigabytes
else ifeq ($(RUNTIME),cpu)
  SERVE_LOCK := requirements.lock
  OTHER_RUNTIME := onnxruntime-gpu
  TAKES := about a minute
else
  $(error RUNTIME is '$(RUNTIME)'; it may be cpu or gpu)
endif
# What is installed is named by what it was made from, so that nothing is made twice or left old.
digest = $(shell cat pyproject.toml $(1) | cksum | cut -d' ' -f1)
SERVE_STAMP := $(VENV)/.installed-$(RUNTIME)-$(call digest,$(SERVE_LOCK))
TEST_STAMP := $(VENV)/.installed-test-$(call digest,requirements.lock requirements-test.lock)
CLIENTS_STAMP := $(CLIENTS)/.installed-$(call digest,requirements-clients.lock)
WHEELS_STAMP := $(WHEELS)/.installed-$(call digest,requirements-wheels.lock)
ANSIBLE_STAMP := $(ANSIBLE)/.installed-$(call digest,requirements-ansible.lock)
NATIVE_SOURCES := $(sort $(wildcard native/Cargo.* native/*.toml native/src/*.rs native/src/*/*.rs \
  native/python/*/*.py native/python/*/*.pyi))
NATIVE_DIGEST := $(shell cat /dev/null $(NATIVE_SOURCES) | cksum | cut -d' ' -f1)
NATIVE_STAMP := $(VENV)/.installed-native-$(NATIVE_DIGEST)
NATIVE_FAILED := $(VENV)/.failed-native-$(NATIVE_DIGEST)
PIP := -m pip --disable-pip-version-check --quiet --no-input

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help install native run demo test lint types unit unit-native bench fuzz cgroup-test units-test arm-test ansible-test example-test tensorrt-test test-gpu wheels deb packages cuda-deb image image-test lock clean check install-all install-test install-clients install-ansible install-native

help: ## what each command does
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo
	@echo "  PYTHON=python3.12   which Python makes the environments (3.11 to 3.13)"
	@echo "  RUNTIME=gpu         ONNX Runtime with CUDA in .venv (two gigabytes; docs/GPU.md); RUNTIME=cpu: back again"
	@echo "  ARGS='--models DIR' what 'make run' gives to 'appliance serve'"
	@echo "  PYTEST_ARGS='-k x'  what 'make test' and 'make unit' give to pytest"
	@echo "  JOBS=0              how many processes 'make unit' tests in; 0: in its own (auto: one for each processor)"
	@echo "  MINUTES=60          how long 'make fuzz' searches; FUZZ=frames, store_files, ...: what it searches (FUZZ=? lists)"

install: $(SERVE_STAMP) ## make .venv with the 'appliance' command

native: $(NATIVE_STAMP) ## build the native front end and install it into .venv (needs Rust's cargo)

run: $(SERVE_STAMP) install-native ## install and serve the models in models/
	@exec $(BIN)/appliance serve $(or $(ARGS),--models models)

test: install-test install-all lint check unit ## install what tests need and run everything

# What takes a processor and what takes the network, side by side.
install-all: $(SERVE_STAMP)
	@$(MAKE) --no-print-directory install-clients install-ansible & others=$$!; \
	$(MAKE) --no-print-directory install-native; wait $$others

check: $(TEST_STAMP)
	@$(MAKE) --no-print-directory types & types=$$!; \
	$(MAKE) --no-print-directory unit-native; native=$$?; wait $$types && exit $$native

lint: $(TEST_STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_STAMP) ## mypy --strict
	$(BIN)/mypy

# The native front end's own modules and the fuzzers' corpora. Such tests link Python's library, which not every Python brings.
LIBPYTHON := import os, sysconfig as s; p = os.path.join(s.get_config_var("LIBDIR"), s.get_config_var("LDLIBRARY")); \
  print(os.path.dirname(p) if p.endswith(".so") and os.path.exists(p) else "")

unit-native: $(TEST_STAMP) ## the native front end's tests in Rust, where cargo and Python's shared library are
	@folder=$$($(BIN)/python -c '$(LIBPYTHON)'); \
	if command -v cargo >/dev/null && [ -n "$$folder" ]; then \
	  PYO3_PYTHON=$(CURDIR)/$(BIN)/python LD_LIBRARY_PATH=$$folder CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/build/cargo} \
	  cargo test --quiet --locked --manifest-path native/Cargo.toml; \
	else echo "make: without cargo and Python's shared library the native front end's tests in Rust are left out"; fi

unit: $(TEST_STAMP) ## the tests alone
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

demo: install-test install-native ## play a fleet on this machine: a controller, three boxes, links that flap (two minutes)
	@exec $(BIN)/python -m demo $(ARGS)

bench: $(TEST_STAMP) ## measure, beside the peers that are installed (python -m benchmarks.peers.setup)
	$(BIN)/python -m benchmarks

fuzz: ## fuzz a boundary: those of tests/fuzz, or what native code reads (needs Rust's cargo and a C++ compiler)
	@if [ -e native/fuzz/$(FUZZ).dict ]; then native/fuzz/fuzz.sh run $(FUZZ) $(MINUTES); \
	else $(BIN)/python -m tests.fuzz.search $(FUZZ) --minutes $(MINUTES); fi

cgroup-test: $(TEST_STAMP) ## the bounds of workers' cgroups, on a kernel that is emulated (needs QEMU; KERNEL=FILE where /boot has none)
	$(BIN)/python -m tests.workers.jail.machine

# .venv gets ONNX Runtime with CUDA for them, where NVIDIA's driver is; GPU_PYTHON=python3 runs them with a Python that has
# that and the test requirements. Tests that find no GPU are failures here; what needs TensorRT or a second GPU is left
# out without, and told of.
GPU_PYTHON ?=
test-gpu: ## the tests that need a GPU, which `make test` skips (GPU_PYTHON=FILE: a Python with onnxruntime-gpu, else .venv)
	@if [ -z "$(GPU_PYTHON)" ]; then \
	  said=$$($(PYTHON) -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() and "it does not answer")' 2>&1) || { \
	    why=$$(printf '%s\n' "$$said" | tail -n 1); \
	    echo "make: there is no driver of NVIDIA's here ($$why); docs/GPU.md says what it takes" >&2; exit 1; }; \
	  $(MAKE) --no-print-directory RUNTIME=gpu install-test install-native || exit 1; fi
	@python='$(or $(GPU_PYTHON),$(BIN)/python)'; \
	said=$$($$python -c 'from appliance.devices.nvml import Nvml; print(*Nvml().devices, sep="\n")' 2>&1) || { \
	  why=$$(printf '%s\n' "$$said" | tail -n 1); \
	  echo "make: nothing tells of a GPU here ($$why); docs/GPU.md says what it takes" >&2; exit 1; }; printf '%s\n' "$$said"; \
	REQUIRE_GPU=1 $$python -m pytest -q -rs -s --timeout 300 tests/devices tests/gpu

# Two files for each machine: Python's, and the native front end for its processor.
wheels: $(WHEELS_STAMP) ## build dist/*.whl for x86-64 and aarch64 (needs Rust's cargo; nothing of it where they are installed)
	@command -v cargo >/dev/null || { \
	  echo "make: the native front end is built with Rust's cargo, which is not on the PATH (https://rustup.rs)" >&2; exit 1; }
	@rm -f dist/*.whl
	$(WHEELS)/bin/hatchling build -t wheel
	@for processor in $(PROCESSORS); do \
	  echo "make: building the native front end for $$processor"; target=$$processor-unknown-linux-gnu; \
	  if command -v rustup >/dev/null; then rustup --quiet target add $$target; fi; \
	  PATH=$(CURDIR)/$(WHEELS)/bin:$$PATH CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/build/cargo} \
	  maturin build --quiet --release --locked --zig --target $$target --compatibility manylinux_$(GLIBC) \
	    -m native/Cargo.toml -o dist || exit 1; done
	@ls -sh dist

units-test: $(TEST_STAMP) ## the package of dist/ under a systemd of its own: jail, reload, restart, watchdog (needs root, mmdebstrap)
	$(BIN)/python -m tests.installation.machine
	$(if $(wildcard dist/edge-appliance-cuda_*.deb),$(BIN)/python -m tests.installation.cuda,@echo "make: the add-on for a GPU is left out: 'make cuda-deb' makes it")

arm-test: $(TEST_STAMP) ## the package for 64-bit ARM on emulated machines (root, mmdebstrap, qemu-user-static, qemu-system-arm; half an hour)
	$(BIN)/python -m tests.installation.arm

ansible-test: $(TEST_STAMP) $(ANSIBLE_STAMP) ## the collection's roles over SSH, with the package of dist/ (needs root, mmdebstrap)
	$(BIN)/python -m tests.ansible.converge

# Not part of `make test`, which needs what is locked alone: the newest OpenVINO is what people will have.
example-test: $(OPENVINO)/bin/python ## examples/openvino: its tests, and `appliance runtime check` (fetches OpenVINO)
	@$(OPENVINO)/bin/python $(PIP) install -e .
	@$(OPENVINO)/bin/python $(PIP) install -e 'examples/openvino[test]'
	cd examples/openvino && $(CURDIR)/$(OPENVINO)/bin/python -m pytest -q -c pyproject.toml tests
	$(OPENVINO)/bin/appliance runtime check openvino

# NVIDIA's own packages, which are no part of `make test`: proprietary, freely installable, and a hundred megabytes. A
# folder that Python is told of, so that nothing of them comes near .venv.
TENSORRT_PACKAGES := tensorrt-cu13-bindings==11.4.0.106 tensorrt-rtx-cu13-bindings==1.7.1.116 tensorrt-rtx-cu13-libs==1.7.1.116
tensorrt-test: $(TEST_STAMP) ## the runtime for TensorRT: NVIDIA's bindings over a simulated library, and TensorRT-RTX's real builder (fetches both)
	@[ -e $(TENSORRT)/.installed ] || { $(BIN)/python $(PIP) install --no-deps --target $(TENSORRT) $(TENSORRT_PACKAGES) && touch $(TENSORRT)/.installed; }
	PYTHONPATH=$(CURDIR)/$(TENSORRT) $(BIN)/python -m pytest -n 0 -q -rs tests/runtimes/tensorrt

# On Debian or one like it: dpkg-deb, and mmdebstrap for the image, which a container engine that runs as root or has user
# namespaces can run. Neither takes root.
deb: wheels ## build dist/*.deb for each processor in PROCESSORS, x86_64 and aarch64 (needs dpkg-deb)
	@$(WHEELS)/bin/python -m packages.deb dist dist $(PROCESSORS)

packages: wheels ## build dist/*.deb and OCI images, with bills of materials and licences (needs dpkg-deb, mmdebstrap)
	@$(WHEELS)/bin/python -m packages dist dist $(PROCESSORS)

# Of the lock file alone, so that it is made when that changes and not with each release.
cuda-deb: $(WHEELS_STAMP) ## build dist/edge-appliance-cuda_*.deb, the runtime for a GPU (needs dpkg-deb; fetches two gigabytes)
	@$(WHEELS)/bin/python -m packages.cuda_deb dist

# As root, with mmdebstrap; everything else it makes itself, below build/image. KEYS=DIR: keys that were made before.
# VARIANT=gpu: with NVIDIA's driver and CUDA, below build/image-gpu. ARCHITECTURE=arm64: below build/image-arm64; on a machine
# of another architecture, too, where QEMU runs programs of that one (Debian's qemu-user-static).
VERSION ?=
KEYS ?=
VARIANT ?= cpu
ARCHITECTURE ?= x86-64
PROCESSOR_OF_x86-64 := x86_64
PROCESSOR_OF_arm64 := aarch64
image: PROCESSORS = $(or $(PROCESSOR_OF_$(ARCHITECTURE)),$(error ARCHITECTURE is '$(ARCHITECTURE)'; it may be x86-64 or arm64))
image: $(TEST_STAMP) deb ## build the bootable image and its release (root; VERSION=1.2.3 KEYS=DIR VARIANT=gpu ARCHITECTURE=arm64)
	@$(BIN)/python -m image.build --variant $(VARIANT) --architecture $(ARCHITECTURE) $(if $(VERSION),--image-version $(VERSION)) $(if $(KEYS),--keys $(KEYS)) \
	  $(if $(TAKE_PACKAGES),--lock)

image-test: $(TEST_STAMP) install-ansible $(if $(and $(wildcard dist/edge-appliance_*_amd64.deb),$(wildcard dist/edge-appliance_*_arm64.deb)),,deb) ## start the image in an emulated machine and break it (an hour and more; ARGS=NAME: one scenario)
	@$(BIN)/python -m tests.image.run $(if $(filter command line,$(origin ARGS)),$(ARGS))

install-test: $(TEST_STAMP) ## install what tests and models/generate.py need into .venv

# The native front end where cargo is there; without it, or when it does not build, the Python one serves. A failure
# is remembered until the sources change.
install-native: $(SERVE_STAMP)
	@if command -v cargo >/dev/null && [ ! -e $(NATIVE_STAMP) ] && [ ! -e $(NATIVE_FAILED) ]; then \
	  echo "make: building the native front end (about a minute, once)"; mkdir -p build; \
	  $(MAKE) --no-print-directory native >build/native.log 2>&1 || touch $(NATIVE_FAILED); fi
	@if [ -e $(NATIVE_FAILED) ] && [ ! -e $(NATIVE_STAMP) ]; then \
	  echo "make: going on without the native front end: its build failed (build/native.log; 'make native' tries again)"; fi
	@echo "make: $$($(BIN)/appliance version | grep 'front end')"

# Other people's clients need an environment of their own. Without it their tests are skipped, and say so.
install-clients:
	@$(MAKE) --no-print-directory $(CLIENTS_STAMP) \
	  || echo "make: $(CLIENTS) could not be made; the tests in tests/clients will be skipped"

# Ansible, too, as nothing of the product needs it.
install-ansible:
	@$(MAKE) --no-print-directory $(ANSIBLE_STAMP) \
	  || echo "make: $(ANSIBLE) could not be made; the tests in tests/ansible will be skipped"

# One resolution for running and testing: the first lock constrains the second. hatchling builds the editable install.
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
  --custom-compile-command 'make lock' pyproject.toml -

lock: ## resolve the lock files anew (needs 'uv' on the PATH)
	echo hatchling | $(LOCK) --extra cpu --extra test --no-emit-package onnxruntime -o requirements-test.lock
	echo hatchling | $(LOCK) --extra controller --extra cpu -c requirements-test.lock -o requirements.lock
	echo hatchling | $(LOCK) --extra controller --extra gpu -c requirements-test.lock -o requirements-gpu.lock
	echo hatchling | $(LOCK) --extra clients -o requirements-clients.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	  --custom-compile-command 'make lock' --group wheels -o requirements-wheels.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	  --custom-compile-command 'make lock' --group ansible -o requirements-ansible.lock
	uv pip compile --quiet --universal --python-version 3.13 --generate-hashes --upgrade \
	  --custom-compile-command 'make lock' -c requirements.lock \
	  $(addprefix --no-emit-package ,flatbuffers numpy packaging protobuf) \
	  packages/requirements-cuda.in -o packages/requirements-cuda.lock

clean: ## remove everything that was made
	rm -rf $(VENV) $(CLIENTS) $(WHEELS) $(ANSIBLE) $(OPENVINO) $(TENSORRT) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python $(CLIENTS)/bin/python $(WHEELS)/bin/python $(ANSIBLE)/bin/python $(OPENVINO)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true); Python 3.11, 3.12 or 3.13 is needed." >&2; \
	  echo "make: name one that you have, for example: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' cannot make environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@echo "make: making $(patsubst %/bin/python,%,$@) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(patsubst %/bin/python,%,$@)

# An environment that another Python made goes on being used: said where PYTHON asks for something else.
ifeq ($(origin PYTHON),command line)
  ASKED := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
  MADE := $(shell sed -n 's/^version *= *\([0-9]*\.[0-9]*\).*/\1/p' $(VENV)/pyvenv.cfg 2>/dev/null)
  ifneq ($(MADE),)
    ifneq ($(ASKED),$(MADE))
      $(info make: .venv is of Python $(MADE) and goes on being used; 'make clean' first makes it anew with $(PYTHON))
    endif
  endif
endif

# What says that all is there goes first: an installation that is broken off, as of two gigabytes, is not taken for one.
$(SERVE_STAMP): | $(BIN)/python
	@echo "make: installing the appliance and what it needs ($(TAKES), once)"
	@rm -f $(VENV)/.installed-cpu-* $(VENV)/.installed-gpu-*
	@if $(BIN)/python $(PIP) show $(OTHER_RUNTIME) >/dev/null 2>&1; then \
	  $(BIN)/python $(PIP) uninstall --yes onnxruntime onnxruntime-gpu \
	    $$(sed -n '/^nvidia-ml-py/d; s/^\(nvidia-[a-z0-9-]*\)==.*/\1/p' requirements-gpu.lock) 2>/dev/null; fi
	@$(BIN)/python $(PIP) install --require-hashes -r $(SERVE_LOCK)
	@$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# pip runs maturin in an environment of its own, which it throws away.
$(NATIVE_STAMP): | $(SERVE_STAMP)
	@command -v cargo >/dev/null || { \
	  echo "make: the native front end is built with Rust's cargo, which is not on the PATH (https://rustup.rs)" >&2; exit 1; }
	@echo "make: building the native front end (about a minute, once)"
	@rm -rf build/native
	@CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-$(CURDIR)/build/cargo} MATURIN_PEP517_ARGS="--locked --compatibility linux" \
	  $(BIN)/python $(PIP) wheel --no-deps --wheel-dir build/native ./native
	@$(BIN)/python $(PIP) install --no-deps --no-index --force-reinstall build/native/*.whl
	@rm -f $(VENV)/.installed-native-* $(NATIVE_FAILED)
	@touch $@

$(TEST_STAMP): | $(SERVE_STAMP)
	@echo "make: installing what the tests need"
	@$(BIN)/python $(PIP) install --require-hashes -r requirements-test.lock
	@touch $@

$(CLIENTS_STAMP): | $(CLIENTS)/bin/python
	@echo "make: installing other people's clients into $(CLIENTS)"
	@$(CLIENTS)/bin/python $(PIP) install --no-compile --require-hashes -r requirements-clients.lock
	@$(CLIENTS)/bin/python $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(WHEELS_STAMP): | $(WHEELS)/bin/python
	@echo "make: installing what builds the wheels into $(WHEELS)"
	@$(WHEELS)/bin/python $(PIP) install --require-hashes -r requirements-wheels.lock
	@touch $@

$(ANSIBLE_STAMP): | $(ANSIBLE)/bin/python
	@echo "make: installing Ansible into $(ANSIBLE)"
	@$(ANSIBLE)/bin/python $(PIP) install --no-compile --require-hashes -r requirements-ansible.lock
	@touch $@
