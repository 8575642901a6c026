// Arguments of the products of a matrix with thin factors.
#pragma once

#include <cstdint>

#include "args/common.h"

namespace gradwire {

// A matrix X of `rows` x `columns` is looked at in tiles, so that what is summed does not depend on threads: from the
// left factor's view of kLeftRows rows, from the right one's of kRightRows. A tile's part of a factor fits into a cache.
constexpr std::int64_t kTileColumns = 1024, kLeftRows = 16, kRightRows = 256;

// Where `grad` is not null, X is the residual, to which the gradient is added first.
struct Thin {
  const float* x;
  Feedback feedback;
  std::int64_t rows, columns, rank;
};

// For each tile of columns one left factor, (rank, rows), of which the sum is wanted: parts = right X^T.
struct LowrankLeft : Thin {
  const float* right;
  float* parts;
};

// For each tile of rows one right factor, (rank, columns): parts = left X.
struct LowrankRight : Thin {
  const float* left;
  float* parts;
};

// out += scale * left^T right. `status` may be null; otherwise a result that is not finite sets it.
struct LowrankAddDecoded {
  const float *left, *right;
  float* out;
  std::int64_t rows, columns, rank;
  float scale;
  std::int32_t* status;
};

}  // namespace gradwire
