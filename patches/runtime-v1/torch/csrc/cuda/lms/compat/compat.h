#pragma once

// The parts of PyTorch 1.x that the runtime needs, with the names that they have in 2.x.

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/lms/compat/capture.h>
#include <torch/csrc/cuda/lms/compat/inside.h>
#include <torch/csrc/cuda/lms/compat/shared.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace c10 {

class OutOfMemoryError : public Error {
  using Error::Error;
};

} // namespace c10

#undef TORCH_CHECK_WITH // PyTorch 1.5 has one
#define TORCH_CHECK_WITH(error_type, condition, ...)                                             \
  if (C10_UNLIKELY(!(condition))) {                                                              \
    throw ::c10::error_type(                                                                     \
        ::c10::SourceLocation{__func__, __FILE__, uint32_t(__LINE__)}, ::c10::str(__VA_ARGS__)); \
  }

namespace torch::cuda::lms::compat {

using MempoolId = std::pair<uint64_t, uint64_t>;

// The native allocator. Its own class is not visible outside of its source file.
namespace cca {

#if __has_include(<c10/util/TypeIndex.h>) // PyTorch 1.4
namespace native = c10::cuda::CUDACachingAllocator;
#else
namespace native {
using namespace c10::cuda::CUDACachingAllocator;
using namespace inside;
} // namespace native
#endif

struct DeviceStats : native::DeviceStats {
  int64_t num_device_alloc = 0;
};

struct SegmentInfo : native::SegmentInfo {
  MempoolId owner_private_pool_id{0, 0}; // there are no pools
  bool is_expandable = false;
};

struct SnapshotInfo {
  std::vector<SegmentInfo> segments;
};

// recordStream() takes an address before 1.5, and the memory's DataPtr since then.
inline void record_stream(
    void (*function)(void*, c10::cuda::CUDAStream),
    const c10::DataPtr& data,
    c10::cuda::CUDAStream stream) {
  function(data.get(), stream);
}
inline void record_stream(
    void (*function)(const c10::DataPtr&, c10::cuda::CUDAStream),
    const c10::DataPtr& data,
    c10::cuda::CUDAStream stream) {
  function(data, stream);
}

// Turns out-of-memory errors into OutOfMemoryError, which PyTorch 1.x does not have.
template <class F>
auto translated(F allocate) {
  try {
    return allocate();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    const char* const message = error.what_without_backtrace();
    TORCH_CHECK_WITH(
        OutOfMemoryError, std::strncmp(message, "CUDA out of memory", 18) != 0, message);
    throw;
  }
}

// PyTorch's allocator functions notify the tier when they are called. This marks calls that LMS
// itself makes.
class OwnCall {
 public:
  OwnCall() {
    ++depth_;
  }
  ~OwnCall() {
    --depth_;
  }
  OwnCall(const OwnCall&) = delete;
  OwnCall& operator=(const OwnCall&) = delete;

  // Whether this thread is in such a call.
  static bool now() {
    return depth_ > 0;
  }

 private:
  static inline thread_local int depth_ = 0;
};

using RawAlloc = void* (*)(size_t bytes, cudaStream_t stream);

class CUDAAllocator {
 public:
  explicit CUDAAllocator(c10::Allocator* target) : target_(target) {}

  c10::DataPtr allocate(size_t bytes) {
    return translated([&] { return target_->allocate(bytes); });
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
    if (const RawAlloc raw_alloc = raw_alloc_.load(std::memory_order_acquire)) {
      return translated([&] { return raw_alloc(bytes, stream); });
    }
    // Until set_raw_alloc(), only the current stream was ever asked for. The context of the memory
    // is its address.
    return allocate(bytes).release_context();
  }
  // Sets the function that allocates for a given stream. It is not a method of a class that is
  // visible here.
  void set_raw_alloc(RawAlloc raw_alloc) {
    raw_alloc_.store(raw_alloc, std::memory_order_release);
  }
  c10::DeleterFnPtr raw_deleter() const {
    return target_->raw_deleter();
  }
  void emptyCache() {
    const OwnCall call;
    native::emptyCache();
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
    const OwnCall call;
    record_stream(&native::recordStream, data, stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) {
    DeviceStats stats{native::getDeviceStats(device), 0};
    stats.num_device_alloc = stats.segment[0].allocated;
    return stats;
  }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) {
    size_t all = 0;
    native::cacheInfo(device, &all, largest);
  }
  double getMemoryFraction(c10::DeviceIndex /*device*/) {
    return 1.0;
  }
  void setMemoryFraction(double /*fraction*/, c10::DeviceIndex /*device*/) {}
  bool initialized() {
    return true;
  }

 private:
  c10::Allocator* const target_;
  std::atomic<RawAlloc> raw_alloc_{nullptr};
};

} // namespace cca

// Whether the native allocator can enforce a limit on how much it takes.
constexpr bool kHasFraction = false;

// Only captures have pools in these releases.
inline void leave_pool(cca::CUDAAllocator&, c10::DeviceIndex, MempoolId) {}
template <class Filter>
void enter_pool(cca::CUDAAllocator&, c10::DeviceIndex, MempoolId, const Filter&) {}

inline cca::SnapshotInfo snapshot(cca::CUDAAllocator& /*allocator*/) {
  cca::SnapshotInfo info;
  for (auto& segment : cca::native::snapshot()) {
    info.segments.push_back({std::move(segment)});
  }
  return info;
}

inline at::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage.data_ptr();
}

inline size_t nbytes(const c10::StorageImpl& storage) {
  return storage.capacity();
}

inline bool in_use(c10::DeviceIndex device) {
  return cca::native::getDeviceStats(device).reserved_bytes[0].current > 0;
}

// The address of a storage that is paged out.
inline void* nowhere() {
  return nullptr;
}

// Every access to a storage goes through the guard: see c10/core/LMS.h.
inline void forbid_access(c10::StorageImpl& /*storage*/, const std::string& /*message*/) {}
inline void allow_access(c10::StorageImpl& /*storage*/) {}
inline std::atomic<bool> readable{false};
inline void update_access(c10::StorageImpl& /*storage*/) {}

// Code that asks a storage for its address calls the guard: see c10/core/LMS.h.
constexpr bool kEveryAccessIsSeen = true;

// PyTorch 1.x has no ranges around autograd's nodes.
inline bool grad_mode() {
  return false;
}

inline StrongStorage lock(const WeakStorage& weak) {
  return weak.lock();
}

// A stream of the user cannot become a stream of PyTorch.
inline bool is_external(c10::cuda::CUDAStream /*stream*/) {
  return false;
}

} // namespace torch::cuda::lms::compat
