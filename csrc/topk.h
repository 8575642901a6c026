// The k largest magnitudes of a tensor, exactly, and with no scratch memory of the tensor's size.
//
//   1. a sample of the tensor gives a bracket: two magnitudes between which the k-th largest almost certainly lies
//   2. one pass counts what is above the bracket and collects what is inside
//   3. the k-th largest is found among what was collected; if the sample misled, by counting digits of all elements
//   4. what is larger is written out, and as many that equal it as k asks for, those of lowest index
//
// Where k is small the bracket is open above, so all that can be chosen is collected with its place, and step 4 needs
// no second pass. The result depends on the values alone, not on the sample, the threads or the SIMD target.
#pragma once

#include "kernels.h"

namespace gradwire {

struct Topk : Feedback {  // without feedback grad and residual are null
  const float* x;         // with feedback the residual
  float* values;
  std::uint16_t* indices;
  std::int32_t* counts;
  std::int64_t k, n;
};

void topk(const Topk& t, int threads);

}  // namespace gradwire
