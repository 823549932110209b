#pragma once

// Included by c10/cuda/CUDACachingAllocator.cpp, which is C++11.

#include <c10/core/Allocator.h>
#include <c10/core/LMS.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <cstdint>

namespace torch {
namespace cuda {
namespace lms {

namespace compat {
namespace cca {
class CUDAAllocator;
using RawAlloc = void* (*)(size_t bytes, cudaStream_t stream);
} // namespace cca
} // namespace compat

#ifdef C10_CUDA_NO_LMS

struct Tier {
  static c10::Allocator* in_front_of(c10::Allocator* native) {
    return native;
  }
  static void* raw_allocate(size_t bytes, cudaStream_t stream, compat::cca::RawAlloc native) {
    return native(bytes, stream);
  }
  static void recorded(void* /*address*/, c10::cuda::CUDAStream /*stream*/) {}
  static void recorded(const c10::DataPtr& /*data*/, c10::cuda::CUDAStream /*stream*/) {}
  static void emptied() {}
  static uint64_t active(uint64_t allocated) {
    return allocated;
  }
};

#else

// The allocator tier: stands in front of the native allocator, and makes room
// before it is asked. With LMS off it only forwards.
class Tier : public c10::Allocator {
 public:
  // The one tier, in front of the native allocator, which lives as long.
  static Tier* in_front_of(c10::Allocator* native);

  // The native allocator behind it.
  static compat::cca::CUDAAllocator* install();

  c10::DataPtr allocate(size_t bytes) const override;
  c10::DeleterFnPtr raw_deleter() const override;
  // Memory that is no storage.
  void* raw_allocate(size_t bytes) override;
  // For a stream that need not be the current one (PyTorch 1.5). `native` asks
  // the native allocator.
  static void* raw_allocate(size_t bytes, cudaStream_t stream, compat::cca::RawAlloc native);

  // The native allocator was told that a stream uses memory, or emptied its
  // cache.
  static void recorded(void* address, c10::cuda::CUDAStream stream);
  static void recorded(const c10::DataPtr& data, c10::cuda::CUDAStream stream);
  static void emptied();

  // Of the bytes that are allocated, how many are known to be in use: all while
  // LMS is off; while it is on, count_active() counts.
  static uint64_t active(uint64_t allocated) {
    return c10::lms::hooks.load(std::memory_order_acquire) ? 0 : allocated;
  }

 private:
  explicit Tier(c10::Allocator* native) : native_(native) {}

  c10::Allocator* const native_;
};

#endif

} // namespace lms
} // namespace cuda
} // namespace torch
