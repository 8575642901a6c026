// The table of one SIMD target. A kernel that csrc/kernels.h names and no file of csrc/families has fails to link.
#include "targets/begin.h"

#if defined(GRADWIRE_TARGET_HEADER)
namespace gradwire::GRADWIRE_TARGET {

#define X(name, Args) void name(const Args& args, std::int64_t begin, std::int64_t end);
GRADWIRE_KERNELS(X)
#undef X

extern const KernelTable table;
const KernelTable table = {
    GRADWIRE_STRING(GRADWIRE_TARGET),
#define X(name, Args) &name,
    GRADWIRE_KERNELS(X)
#undef X
};

}  // namespace gradwire::GRADWIRE_TARGET
#endif

#include "targets/end.h"
