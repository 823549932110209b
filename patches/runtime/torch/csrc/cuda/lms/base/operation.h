#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// The outermost operator that this thread runs: its name, and what has failed in it. The guard sets
// it, and the code that moves memory uses it.
struct Operation {
  const char* name = nullptr; // null outside of operators
  const char* lasting_name = nullptr; // the same, if it is never freed; else null

  // Why an input could not be paged in.
  struct Failure {
    std::string message; // empty if none failed
    bool memory = false; // whether memory was missing

    // Throws c10::OutOfMemoryError if memory was missing, otherwise c10::Error.
    void raise() const;
  };
  Failure failure;

  // The last request for memory that failed in this operator.
  struct Refusal {
    c10::DeviceIndex device = -1; // -1 if no request failed
    size_t bytes = 0;
    unsigned exceptions = 0; // how many were in flight before the request
  };
  Refusal refusal;

  // The operation of the calling thread.
  static Operation& current();

  // The operator's name for a log.
  static const char* label() {
    return current().name ? current().name : "-";
  }

  // Notes that a request of this thread's operator is about to fail because there is no memory.
  void refuse(c10::DeviceIndex device, size_t bytes);

  // Throws c10::Error if an input could not be paged in. A RecordFunction callback cannot throw, so
  // the error is thrown at the operator's next allocation.
  void check();

  // How many exceptions are in flight in this thread.
  static unsigned exceptions();
};

} // namespace torch::cuda::lms
