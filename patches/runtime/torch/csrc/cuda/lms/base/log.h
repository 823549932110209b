#pragma once

#include <cstdio>
#include <cstdlib>

namespace torch::cuda::lms {

// PYTORCH_LMS_DEBUG=1 writes a line to stderr for each move of a storage. The
// variable of the first LMS.
inline bool debug() {
  static const bool enabled = [] {
    const char* const value = std::getenv("PYTORCH_LMS_DEBUG");
    return value && *value && *value != '0';
  }();
  return enabled;
}

template <class... Values>
void debug_log(const char* format, Values... values) {
  if (debug()) {
    std::fprintf(stderr, format, values...);
  }
}

} // namespace torch::cuda::lms
