# The commands for building and testing. `make` lists them. Each installs missing Debian packages that it needs.
.NOTPARALLEL:
.PHONY: help train build build-cuda package test test-long test-cuda sanitize-cuda lint format asan tsan reliability bench fuzz setup clean

help:  ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A new run that would take this machine longer gets fewer steps; 0: all of the recipe's. A call with arguments of its
# own gets what it asks for.
MINUTES = $(if $(ARGS),0,6)

train: build  ## Train a small MoE on this machine (make train ARGS="--data my.txt"; MINUTES=0: however long it takes)
	@scripts/train.sh build/release/witan train $(if $(filter-out 0,$(MINUTES)),--max-minutes $(MINUTES)) $(ARGS)

build:  ## Build the witan binary: build/release/witan
	@scripts/setup.sh run
	@scripts/build.sh release witan

build-cuda:  ## Build the binary for NVIDIA GPUs too: build/cuda/witan
	@scripts/setup.sh run test cuda
	@scripts/build.sh cuda witan cuda_bench

package:  ## Build Debian packages, for any processor with AVX2: build/package/*.deb
	@scripts/setup.sh run package
	@scripts/package.sh

test:  ## Build and run every test
	@scripts/setup.sh run test
	@scripts/build.sh test
	@scripts/test.sh test

test-long:  ## Run tests of many steps and layouts in their long form (ten minutes, up to 8 GiB)
	@scripts/setup.sh run test
	@scripts/build.sh test
	@scripts/test_long.sh

test-cuda:  ## Build for NVIDIA GPUs, and run the GPU tests if there is a GPU
	@scripts/setup.sh run test cuda
	@scripts/build.sh cuda witan test_cuda cuda_bench
	@scripts/test_cuda.sh

sanitize-cuda:  ## Run the tests of CUDA kernels under compute-sanitizer (needs a GPU, minutes)
	@scripts/setup.sh run test cuda
	@scripts/build.sh cuda witan test_cuda
	@scripts/sanitize_cuda.sh

lint:  ## Check the changed files: clang-format, clang-tidy, shellcheck
	@scripts/setup.sh run test lint
	@scripts/configure.sh lint
	@scripts/lint.sh

format:  ## Format the changed files with clang-format
	@scripts/setup.sh lint
	@scripts/changed.sh '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -r clang-format -i

asan:  ## Run the tests under the address and undefined-behaviour sanitizers
	@scripts/setup.sh run test
	@scripts/build.sh asan
	@scripts/test.sh asan

tsan:  ## Run the tests under the thread sanitizer
	@scripts/setup.sh run test
	@scripts/fixed_addresses.sh scripts/build.sh tsan
	@scripts/fixed_addresses.sh scripts/test.sh tsan

reliability:  ## Kill small runs, fill their disks and damage their files in every way (minutes)
	@scripts/setup.sh run test reliability
	@scripts/build.sh test witan test_reliability test_checkpoint
	@scripts/reliability/all.sh build/test

bench:  ## Build and run the benchmarks
	@scripts/setup.sh run bench
	@scripts/build.sh bench
	@set -e; for program in build/bench/bench/*_bench; do [ ! -x "$$program" ] || "$$program"; done

fuzz:  ## Fuzz every parser for a minute each (make fuzz SECONDS=600)
	@scripts/setup.sh run fuzz
	@scripts/build.sh fuzz
	@scripts/fuzz.sh $(or $(SECONDS),60)

setup:  ## Install the packages that train, test, lint and bench need
	@scripts/setup.sh run test lint bench

clean:  ## Remove everything that was built (runs/ stays)
	@rm -rf build
