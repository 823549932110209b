#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace torch::cuda::lms::compat {

// The profiler of these releases keeps nothing apart that the GPU does in a range.
class Range {
 public:
  bool wanted() const {
    return false;
  }
  void begin(const std::string&, std::initializer_list<int64_t>) {}
};

} // namespace torch::cuda::lms::compat
