#include <c10/core/LMS.h>

namespace c10 {
namespace lms {

std::atomic<const Hooks*> hooks{nullptr};

} // namespace lms
} // namespace c10
