#include <torch/csrc/cuda/lms/host/slab.h>

#include <torch/csrc/cuda/lms/host/host.h>

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace torch::cuda::lms {

namespace {

using host::kHugePage;
constexpr size_t kPage = 4096; // bytes; the smallest page size
constexpr size_t kPart = size_t(32) << 20; // bytes; the least work for which a thread is worthwhile
constexpr size_t kThreads = 8;

// The kernel allocates a page at the first write to it.
void touch(char* data, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += kPage) {
    *static_cast<volatile char*>(data + offset) = 0;
  }
}

void touch_in_parallel(char* data, size_t bytes) {
  const size_t cores = std::thread::hardware_concurrency() / 2; // two hardware threads per core
  const size_t threads = std::min({kThreads, std::max<size_t>(cores, 1), bytes / kPart});
  if (threads <= 1) {
    touch(data, bytes);
    return;
  }
  const size_t part = Slab::rounded((bytes + threads - 1) / threads);
  std::vector<std::thread> others;
  others.reserve(threads);
  size_t offset = 0;
  try {
    for (; offset + part < bytes; offset += part) {
      others.emplace_back(touch, data + offset, part);
    }
  } catch (const std::system_error&) {
    // No more threads can be had.
  }
  touch(data + offset, bytes - offset);
  for (std::thread& other : others) {
    other.join();
  }
}

} // namespace

Slab::Slab(size_t bytes, int node) : size_(rounded(bytes)) {
  if (map(node)) {
    touch_in_parallel(data_, size_);
    registered_ = cudaHostRegister(data_, size_, cudaHostRegisterPortable) == cudaSuccess;
    if (!registered_) {
      (void)cudaGetLastError();
      unmap();
    }
  }
  if (!registered_) {
    // Systems that cannot register memory can still allocate pinned memory.
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, size_, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      TORCH_CHECK(
          false,
          "LMS: ",
          size_,
          " bytes of host memory cannot be pinned (",
          cudaGetErrorString(error),
          ")");
    }
    data_ = static_cast<char*>(data);
  }
  by_node_ = host::bytes_by_node(data_, size_);
}

Slab::~Slab() {
  try {
    release();
  } catch (const c10::Error&) {
    // At process exit, the driver may already be unloaded. The error can be ignored then.
    (void)cudaGetLastError();
  }
}

void Slab::release() {
  if (!data_) {
    return;
  }
  if (registered_) {
    C10_CUDA_CHECK(cudaHostUnregister(data_));
    unmap();
  } else {
    C10_CUDA_CHECK(cudaFreeHost(data_));
    data_ = nullptr;
  }
}

size_t Slab::rounded(size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

bool Slab::map(int node) {
  // Map one more huge page than needed, so that the slab can start at a huge page boundary.
  const size_t mapped = size_ + kHugePage;
  void* const start =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    return false;
  }
  auto* const first = static_cast<char*>(start);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (before > 0) {
    (void)munmap(first, before);
  }
  (void)munmap(first + before + size_, mapped - before - size_);
  data_ = first + before;
  (void)madvise(data_, size_, MADV_HUGEPAGE);
  // After a fork, the first write to a page would give this process a copy of the page, and the
  // device would still use the old one.
  (void)madvise(data_, size_, MADV_DONTFORK);
  host::prefer_node(data_, size_, node);
  return true;
}

void Slab::unmap() {
  (void)munmap(data_, size_);
  data_ = nullptr;
}

} // namespace torch::cuda::lms
