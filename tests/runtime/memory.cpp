// What PyTorch's C++ code asks its CUDA allocator.

#include <c10/cuda/CUDACachingAllocator.h>

// The largest possible request in bytes. cuDNN chooses its algorithms by it.
extern "C" size_t obtainable_bytes(int device) {
  size_t largest = 0;
  c10::cuda::CUDACachingAllocator::cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
  return largest;
}

// Memory that is no storage's, as cuBLAS's workspaces are. Freed by free_workspace().
extern "C" at::DataPtr* make_workspace(size_t bytes) {
  return new at::DataPtr(c10::cuda::CUDACachingAllocator::get()->allocate(bytes));
}

extern "C" void free_workspace(const at::DataPtr* workspace) {
  delete workspace;
}
