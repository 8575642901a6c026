// Products of a matrix with thin factors, in tiles whose sums are added in one order.
#pragma once

#include "args/lowrank.h"

namespace gradwire {

// left (rank, rows) = right X^T
void lowrank_left(LowrankLeft args, float* left, int threads);

// right (rank, columns) = left X
void lowrank_right(LowrankRight args, float* right, int threads);

void lowrank_add_decoded(const LowrankAddDecoded& args, int threads);

}  // namespace gradwire
