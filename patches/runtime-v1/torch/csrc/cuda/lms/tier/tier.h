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

// The allocator tier. It is in front of the native allocator, and makes room before it calls it.
// While LMS is off, it only forwards calls.
class Tier : public c10::Allocator {
 public:
  // Returns the only tier, in front of the native allocator, which must exist as long as the tier.
  static Tier* in_front_of(c10::Allocator* native);

  // Returns the native allocator behind the tier.
  static compat::cca::CUDAAllocator* install();

  c10::DataPtr allocate(size_t bytes) const override;
  c10::DeleterFnPtr raw_deleter() const override;
  // Allocates memory that is not a storage.
  void* raw_allocate(size_t bytes) override;
  // Allocates for a stream that may not be the current one (PyTorch 1.5). `native` calls the native
  // allocator.
  static void* raw_allocate(size_t bytes, cudaStream_t stream, compat::cca::RawAlloc native);

  // Called when the native allocator was told that a stream uses memory, or emptied its cache.
  static void recorded(void* address, c10::cuda::CUDAStream stream);
  static void recorded(const c10::DataPtr& data, c10::cuda::CUDAStream stream);
  static void emptied();

  // How many of the allocated bytes are in use. While LMS is off, all of them are; while it is on,
  // count_active() counts them.
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
