// What PyTorch's C++ code asks its CUDA allocator.

#include <c10/cuda/CUDACachingAllocator.h>

// The largest possible request in bytes. cuDNN chooses its algorithms by it.
extern "C" size_t obtainable_bytes(int device) {
  size_t largest = 0;
  c10::cuda::CUDACachingAllocator::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}
