#pragma once

#include <torch/csrc/cuda/lms/stream/event.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <deque>
#include <optional>

namespace torch::cuda::lms {

// Memory of one device that no block has any more, and that the native allocator does not have yet,
// because the device may still use it. Used under the LMS mutex.
class Limbo {
 public:
  explicit Limbo(c10::DeviceIndex device) : device_(device) {}
  Limbo(const Limbo&) = delete;
  Limbo& operator=(const Limbo&) = delete;

  // Keeps memory of this number of bytes until the event is complete. If a home stream is given,
  // collect() can make it wait for the event, and need not keep the memory.
  void keep(
      at::DataPtr&& memory,
      size_t bytes,
      std::optional<c10::cuda::CUDAStream> home,
      EventRef done);

  size_t bytes() const {
    return bytes_;
  }

  // Gives back what the device does not use any more. Must not be called while a graph is captured.
  void collect();

  // Waits until the device has finished with all that is here now, and gives it back. Pauses the
  // mutex.
  void wait();

 private:
  struct Entry {
    at::DataPtr memory;
    size_t bytes;
    std::optional<c10::cuda::CUDAStream> home;
    EventRef done; // null if it is known to be complete
  };
  using Entries = std::deque<Entry>;

  Entries::iterator give_back(Entries::iterator entry); // returns the next one

  const c10::DeviceIndex device_;
  Entries entries_;
  size_t bytes_ = 0;
};

} // namespace torch::cuda::lms
