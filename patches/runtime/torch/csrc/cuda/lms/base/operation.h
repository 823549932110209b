#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// What those who move memory know of the outermost operator that this thread is in: its name, and
// what has gone wrong in it. The guard sets it.
struct Operation {
  const char* name = nullptr; // null outside of operators
  const char* lasting_name = nullptr; // the same, if it is valid for as long as the process lives
  std::string failure; // why an input could not be brought

  // The last request for memory that failed in it.
  struct Refusal {
    c10::DeviceIndex device = -1; // -1: there was none
    size_t bytes = 0;
    unsigned exceptions = 0; // in flight before
  };
  Refusal refusal;

  // That of the calling thread.
  static Operation& current();

  // Its name for a log.
  static const char* label() {
    return current().name ? current().name : "-";
  }

  // A request of this thread's operator is about to fail for want of memory.
  void refuse(c10::DeviceIndex device, size_t bytes);

  // Throws c10::OutOfMemoryError if an input could not be brought. A RecordFunction callback
  // cannot throw; the operator's next allocation can.
  void check();

  // How many exceptions this thread is unwinding for.
  static unsigned exceptions();
};

} // namespace torch::cuda::lms
