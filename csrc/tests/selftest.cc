// Compares every kernel of every SIMD target with the scalar one on random data, bit for bit. For targets that the
// Python tests cannot reach on the machine at hand: csrc/tests/neon.sh runs it for 64-bit Arm in an emulator.
#include <cstdio>
#include <string>

#include "selftest.h"

using namespace gradwire;
using namespace gradwire::selftest;

int main() {
  int compared = 0;
  for (const std::string& target : targets()) {
    if (target == "scalar") continue;
    for (const Suite* suite = Suite::first; suite != nullptr; suite = suite->next) suite->check(target);
    std::printf("%s compared with scalar\n", target.c_str());
    ++compared;
  }
  std::printf("%d targets, %d failures\n", compared, failures);
  return failures != 0 || compared == 0;
}
