// What PyTorch's C++ asks its CUDA allocator.

#include <c10/cuda/CUDACachingAllocator.h>

// Bytes that one request can have: what cuDNN's algorithms are chosen by.
extern "C" size_t obtainable_bytes(int device) {
  size_t largest = 0;
  c10::cuda::CUDACachingAllocator::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}
