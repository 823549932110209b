#pragma once

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// Counts the host memory that the arenas of all devices have pinned, and compares it with the limit
// that the user set and with what the machine has left. Used under the LMS mutex.
class Budget {
 public:
  static Budget& get();

  // Counts these bytes as pinned, or returns false and the reason why they cannot be pinned. A
  // limit of 0 means that only the machine limits it.
  bool take(size_t bytes, size_t limit, std::string& why);
  void give(size_t bytes);

 private:
  Budget() = default;

  size_t used_ = 0; // bytes
};

} // namespace torch::cuda::lms
