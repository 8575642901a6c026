// What is the same for all SIMD targets: standard headers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
