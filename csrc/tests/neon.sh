#!/bin/sh
# Compares the NEON kernels with the scalar ones in an emulator: apt-get install g++-aarch64-linux-gnu qemu-user
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build
aarch64-linux-gnu-g++ -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -static \
  -Icsrc csrc/tests/selftest.cc csrc/dispatch.cc csrc/inceptionn.cc csrc/lowrank.cc csrc/radix_select.cc csrc/threshold.cc csrc/topk.cc \
  csrc/targets/scalar.cc \
  csrc/targets/neon.cc -o build/selftest-neon
qemu-aarch64 build/selftest-neon
