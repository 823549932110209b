#pragma once

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// Host memory that the arenas of all devices have pinned, against the limit
// that the user set and what the machine has. Used under the LMS mutex.
class Budget {
 public:
  static Budget& get();

  // Counts the bytes, or says why they cannot be had. Limit 0 = the machine's.
  bool take(size_t bytes, size_t limit, std::string& why);
  void give(size_t bytes);

 private:
  Budget() = default;

  size_t used_ = 0; // bytes
};

} // namespace torch::cuda::lms
