#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace torch::cuda::lms {

// PYTORCH_LMS_DEBUG=1 writes a line to stderr for each move of a storage. The variable of the first
// LMS, which had keys and values there (verbosity=1,speculative-pageout=off): any verbosity but 0
// is the same, and the other keys say how it worked.
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
