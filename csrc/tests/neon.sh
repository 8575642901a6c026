#!/bin/sh
# Compares the NEON kernels with the scalar ones in an emulator: apt-get install g++-aarch64-linux-gnu qemu-user
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build/neon
compile() {
  aarch64-linux-gnu-g++ -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Icsrc "$@"
}
families=$(find src/gradwire -name '*.cc')
for target in scalar neon; do
  for file in $families; do
    compile -DGRADWIRE_TARGET=$target -c "$file" -o "build/neon/$target-$(echo "$file" | tr / -).o"
  done
done
compile -static -DGRADWIRE_SELFTEST $families csrc/tests/selftest.cc \
  csrc/dispatch.cc csrc/parallel.cc build/neon/*.o -o build/selftest-neon
qemu-aarch64 build/selftest-neon
