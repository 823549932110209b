#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace torch::cuda::lms {

// PYTORCH_LMS_DEBUG=1 writes a line to stderr for each page-out and page-in. In the first LMS, this
// variable contained keys and values (verbosity=1,speculative-pageout=off). Any verbosity other
// than 0 means the same as 1. The other keys configured how the first LMS worked and are ignored.
inline bool debug() {
  static const bool enabled = [] {
    const char* value = std::getenv("PYTORCH_LMS_DEBUG");
    if (value && std::strchr(value, '=')) {
      constexpr const char* kKey = "verbosity=";
      value = std::strstr(value, kKey);
      value = value ? value + std::strlen(kKey) : nullptr;
    }
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
