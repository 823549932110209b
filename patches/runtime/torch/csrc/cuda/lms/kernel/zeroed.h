#pragma once

#include <cstddef>
#include <memory>

namespace torch::cuda::lms {

struct DeviceFree {
  void operator()(void* memory) const;
};
using DeviceMemory = std::unique_ptr<void, DeviceFree>;

// Allocates memory of the current device, not from PyTorch's allocator. It is zero before any
// stream can use it, for which the host waits. Throws c10::Error if there is none.
DeviceMemory zeroed(size_t bytes);

} // namespace torch::cuda::lms
