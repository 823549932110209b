#pragma once

// The parts of PyTorch 1.13 that the runtime needs, with the names that they have in 2.x.

#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/lms/compat/capture.h>
#include <torch/csrc/cuda/lms/compat/shared.h>
#include <torch/csrc/cuda/lms/seam/seam.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch::cuda::lms::compat {

using MempoolId = c10::cuda::MempoolId_t;

// The seam; null if it was not loaded before PyTorch's own libraries.
seam::Seam* find_seam();

namespace cca {

namespace native = c10::cuda::CUDACachingAllocator;

struct DeviceStats : native::DeviceStats {
  int64_t num_device_alloc = 0;
};

struct SegmentInfo : native::SegmentInfo {
  // Any number other than 0 for a segment of a graph. The native allocator does not report which
  // graph it is.
  MempoolId owner_private_pool_id{0, 0};
  bool is_expandable = false;
};

struct SnapshotInfo {
  std::vector<SegmentInfo> segments;
};

// The native allocator. In this release it consists of functions and is not a class.
class CUDAAllocator {
 public:
  explicit CUDAAllocator(seam::Seam& seam) : seam_(seam), native_(seam.native()) {}

  c10::DataPtr allocate(size_t bytes) {
    return native_.get()->allocate(bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
    return native_.raw_alloc_with_stream(bytes, stream);
  }
  c10::DeleterFnPtr raw_deleter() const {
    return native_.get()->raw_deleter();
  }
  void emptyCache() {
    native_.empty_cache();
  }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
    native_.record_stream(data, stream);
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
  double getMemoryFraction(c10::DeviceIndex device) {
    const double fraction = seam_.fractions.at(static_cast<size_t>(device));
    return fraction > 0 ? fraction : 1.0;
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) {
    native_.set_memory_fraction(fraction, device);
  }
  bool initialized() {
    try {
      native::getDeviceStats(0);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }
  const seam::Seam& seam() const {
    return seam_;
  }
  const seam::Native& functions() const {
    return native_;
  }

 private:
  seam::Seam& seam_;
  const seam::Native& native_;
};

} // namespace cca

// Whether the native allocator can enforce a limit on how much it takes.
constexpr bool kHasFraction = true;

// Only captures have pools in these releases.
inline void leave_pool(cca::CUDAAllocator&, c10::DeviceIndex, MempoolId) {}
template <class Filter>
void enter_pool(cca::CUDAAllocator&, c10::DeviceIndex, MempoolId, const Filter&) {}

inline cca::SnapshotInfo snapshot(cca::CUDAAllocator& allocator) {
  cca::SnapshotInfo info;
  for (auto& segment : cca::native::snapshot()) {
    const uint64_t pool = allocator.seam().is_graphs(segment.address) ? 1 : 0;
    info.segments.push_back({std::move(segment), {0, pool}});
  }
  return info;
}

inline at::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage.data_ptr();
}

inline size_t nbytes(const c10::StorageImpl& storage) {
  const c10::SymInt bytes = storage.sym_nbytes();
  return bytes.is_symbolic() ? 0 : static_cast<size_t>(bytes.as_int_unchecked());
}

// Whether this process has used the device.
inline bool in_use(c10::DeviceIndex device) {
  return cca::native::getDeviceStats(device).reserved_bytes[0].current > 0;
}

// The address of a storage that is paged out. In this release an access to a storage cannot throw.
// But no processor maps addresses near this one, whatever offset a tensor adds to it. So an access
// faults instead of reading other data.
constexpr uintptr_t kNowhere = uintptr_t{0x6c6d} << 48;

inline void* nowhere() {
  return reinterpret_cast<void*>(kNowhere);
}

inline void forbid_access(c10::StorageImpl& /*storage*/, const std::string& /*message*/) {}
inline void allow_access(c10::StorageImpl& /*storage*/) {}
inline std::atomic<bool> readable{false};
inline void update_access(c10::StorageImpl& /*storage*/) {}

// C++ code that does not go through the dispatcher reads addresses without the guard seeing it.
constexpr bool kEveryAccessIsSeen = false;

// Whether autograd records what this thread does.
inline bool grad_mode() {
  return c10::GradMode::is_enabled();
}

inline StrongStorage lock(const WeakStorage& weak) {
  return weak.lock();
}

// A stream that the user created and may destroy (torch.cuda.ExternalStream). Its id is the handle.
// The lowest bits of the ids of PyTorch's own streams are their type, and 0 is the default stream.
inline bool is_external(c10::cuda::CUDAStream stream) {
  return stream.id() != 0 && (stream.id() & 7) == 0;
}

} // namespace torch::cuda::lms::compat
