#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace torch::cuda::lms {

// Calls work(). If it throws, returns the first line of the message, because errors of LMS are one
// line; otherwise an empty text.
template <typename Work>
std::string error_of(Work work) {
  std::string why;
  try {
    work();
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  return why.substr(0, why.find('\n'));
}

} // namespace torch::cuda::lms
