#pragma once

// The one place where torch versions differ. A new version that does not
// compile is mended here.

#include <c10/core/StorageImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/version.h>

#include <atomic>
#include <cstdint>
#include <string>

#define LMS_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace torch::cuda::lms::compat {

namespace cca = c10::cuda::CUDACachingAllocator;

using c10::CachingDeviceAllocator::DeviceStats;

#if LMS_TORCH_AT_LEAST(9)
using MempoolId = c10::MempoolId_t;
#else
using MempoolId = c10::cuda::MempoolId_t;
#endif

inline at::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks();
}

inline size_t nbytes(const c10::StorageImpl& storage) {
  return storage.nbytes();
}

// Whether this process has used the device.
inline bool in_use(c10::DeviceIndex device) {
  return c10::cuda::hasPrimaryContext(device);
}

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// This thread may call what a capture of another one forbids.
class RelaxedCapture {
  c10::cuda::CUDAStreamCaptureModeGuard guard_{cudaStreamCaptureModeRelaxed};
};

// Throw-on-access of a StorageImpl. Setting it is public since 2.3, clearing it
// since 2.12, and only together with the message, which costs an allocation at
// each operator. An explicit instantiation may name a private member
// (C++17 [temp.explicit]/12), so both flags are reached in every version
// without copying the class's layout.
template <bool c10::StorageImpl::* Reading, bool c10::StorageImpl::* Writing>
struct AccessFlags {
  friend void set_access_flags(c10::StorageImpl& storage, bool reading, bool writing) {
    storage.*Reading = reading;
    storage.*Writing = writing;
  }
};
template struct AccessFlags<
    &c10::StorageImpl::throw_on_immutable_data_ptr_,
    &c10::StorageImpl::throw_on_mutable_data_ptr_>;
void set_access_flags(c10::StorageImpl& storage, bool reading, bool writing);

// From now on each access to the data throws c10::Error with this message.
inline void forbid_access(c10::StorageImpl& storage, std::string message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
}

// After that, reading the address is allowed again. It is null.
inline void allow_reading(c10::StorageImpl& storage) {
  set_access_flags(storage, false, true);
}

// What makes mutable_data() look at these flags stays set: that costs the slow
// path of its check and no more.
inline void allow_access(c10::StorageImpl& storage) {
  set_access_flags(storage, false, false);
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using StrongStorage = c10::intrusive_ptr<c10::StorageImpl>;

inline WeakStorage weak(c10::StorageImpl& storage) {
  return WeakStorage(StrongStorage::reclaim_copy(&storage));
}

// A strong reference for a moment, under the LMS mutex; null for a storage that
// is dying. Where storages know of their Python objects (some time after
// 2.9), null also when that is its only owner: WeakStorage::lock() takes the
// GIL then, and whoever has the GIL may wait for the mutex.
#if LMS_TORCH_AT_LEAST(10)
template <auto Count>
struct ReferenceCount {
  friend std::atomic<uint64_t>& reference_count(c10::StorageImpl& storage) {
    return storage.*Count;
  }
};
template struct ReferenceCount<&c10::intrusive_ptr_target::combined_refcount_>;
std::atomic<uint64_t>& reference_count(c10::StorageImpl& storage);

inline StrongStorage lock(const WeakStorage& weak) {
  auto* const storage = weak._unsafe_get_target();
  std::atomic<uint64_t>& count = reference_count(*storage);
  uint64_t seen = count.load(std::memory_order_relaxed);
  do {
    const auto references = c10::detail::refcount(seen);
    if (references == 0 || (references == 1 && c10::detail::has_pyobject(seen))) {
      return {};
    }
  } while (!count.compare_exchange_weak(
      seen,
      seen + c10::detail::kReferenceCountOne,
      std::memory_order_acquire,
      std::memory_order_relaxed));
  return StrongStorage::reclaim(storage);
}
#else
inline StrongStorage lock(const WeakStorage& weak) {
  return weak.lock();
}
#endif

// A stream that the user made and may destroy (torch.cuda.ExternalStream). Its
// id is the handle; the ids of PyTorch's own streams are odd, and 0 is the
// default stream.
inline bool is_external(c10::cuda::CUDAStream stream) {
  return stream.id() != 0 && (stream.id() & 1) == 0;
}

// Forwards every virtual method of this version's CUDAAllocator to another
// allocator; the tier overrides the few that it cares about. A method with a
// default implementation that is missing here would be lost silently, so a test
// compares this list with the header of every registered tag.
class ForwardingAllocator : public cca::CUDAAllocator {
 public:
  explicit ForwardingAllocator(cca::CUDAAllocator* target) : target_(target) {}

  c10::DataPtr allocate(size_t n) override {
    return target_->allocate(n);
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return target_->is_simple_data_ptr(data);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return target_->raw_deleter();
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    target_->copy_data(dest, src, count);
  }
  void* raw_alloc(size_t nbytes) override {
    return target_->raw_alloc(nbytes);
  }
  void* raw_alloc_with_stream(size_t nbytes, cudaStream_t stream) override {
    return target_->raw_alloc_with_stream(nbytes, stream);
  }
  void raw_delete(void* ptr) override {
    target_->raw_delete(ptr);
  }
  void init(int device_count) override {
    target_->init(device_count);
  }
  bool initialized() override {
    return target_->initialized();
  }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return target_->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    target_->setMemoryFraction(fraction, device);
  }
  void enable(bool value) override {
    target_->enable(value);
  }
  bool isEnabled() const override {
    return target_->isEnabled();
  }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    target_->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* ptr, size_t* size) override {
    return target_->getBaseAllocation(ptr, size);
  }
  using cca::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    target_->recordStream(data, stream);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return target_->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    target_->resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    target_->resetPeakStats(device);
  }
  void beginAllocateToPool(
      c10::DeviceIndex device,
      MempoolId pool,
      std::function<bool(cudaStream_t)> filter) override {
    target_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, MempoolId pool) override {
    target_->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, MempoolId pool) override {
    target_->releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, MempoolId pool) override {
    return target_->getPoolUseCount(device, pool);
  }
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      MempoolId pool,
      const std::unordered_set<void*>& expected) override {
    return target_->checkPoolLiveAllocations(device, pool, expected);
  }
  cca::ShareableHandle shareIpcHandle(void* ptr) override {
    return target_->shareIpcHandle(ptr);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return target_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override {
    return target_->isHistoryEnabled();
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    target_->recordAnnotation(pairs);
  }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
    target_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    target_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    target_->enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(
      void* dst,
      int dst_device,
      const void* src,
      int src_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override {
    return target_->memcpyAsync(dst, dst_device, src, src_device, count, stream, p2p_enabled);
  }
  std::shared_ptr<cca::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId pool)
      override {
    return target_->getCheckpointState(device, pool);
  }
  cca::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<cca::AllocatorState> state) override {
    return target_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override {
    return target_->name();
  }

#if LMS_TORCH_AT_LEAST(8)
  void emptyCache(MempoolId pool) override {
    target_->emptyCache(pool);
    cache_emptied();
  }
  void pushCompileContext(std::string& context) override {
    target_->pushCompileContext(context);
  }
  void popCompileContext() override {
    target_->popCompileContext();
  }
#else
  void emptyCache() override {
    target_->emptyCache();
    cache_emptied();
  }
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId pool) override {
    target_->ensureExistsAndIncrefPool(device, pool);
  }
#endif

#if LMS_TORCH_AT_LEAST(10)
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return target_->getMemoryInfo(device);
  }
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return target_->getExpandableSegmentSizes(device);
  }
  void setNoSplit(c10::DeviceIndex device, MempoolId pool) override {
    target_->setNoSplit(device, pool);
  }
  void setUserMetadata(const std::string& metadata) override {
    target_->setUserMetadata(metadata);
  }
  std::string getUserMetadata() override {
    return target_->getUserMetadata();
  }
#endif

#if LMS_TORCH_AT_LEAST(11)
  cca::SnapshotInfo snapshot(MempoolId pool, bool traces) override {
    return target_->snapshot(pool, traces);
  }
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId pool,
      std::shared_ptr<cca::CUDAAllocator> allocator) override {
    target_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId pool, bool use) override {
    target_->setUseOnOOM(device, pool, use);
  }
  void recordHistory(
      bool enabled,
      cca::CreateContextFn recorder,
      size_t entries,
      cca::RecordContext when,
      bool clear,
      const std::vector<std::string>& skip) override {
    target_->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
#elif LMS_TORCH_AT_LEAST(8)
  cca::SnapshotInfo snapshot(MempoolId pool) override {
    return target_->snapshot(pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId pool, cca::CUDAAllocator* allocator)
      override {
    target_->createOrIncrefPool(device, pool, allocator);
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId pool) override {
    target_->setUseOnOOM(device, pool);
  }
  void recordHistory(
      bool enabled,
      cca::CreateContextFn recorder,
      size_t entries,
      cca::RecordContext when,
      bool clear) override {
    target_->recordHistory(enabled, recorder, entries, when, clear);
  }
#else
  cca::SnapshotInfo snapshot() override {
    return target_->snapshot();
  }
  void recordHistory(
      bool enabled,
      cca::CreateContextFn recorder,
      size_t entries,
      cca::RecordContext when) override {
    target_->recordHistory(enabled, recorder, entries, when);
  }
#endif

#if LMS_TORCH_AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
    return target_->getContextForPointer(ptr);
  }
  void attachOomRejectionObserver(cca::OomRejectionObserver observer) override {
    target_->attachOomRejectionObserver(std::move(observer));
  }
#endif

#if LMS_TORCH_AT_LEAST(13)
  void markCaptureBegin(c10::DeviceIndex device) override {
    target_->markCaptureBegin(device);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    target_->markCaptureEnd(device);
  }
  c10::DataPtr allocateWithAddress(size_t size, void* address) override {
    return target_->allocateWithAddress(size, address);
  }
#endif

#if LMS_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override {
    return target_->supportsUserMetadata();
  }
  void annotateMemory(const void* ptr, const std::string& metadata) override {
    target_->annotateMemory(ptr, metadata);
  }
#endif

 protected:
  // After the cache of one pool, or the whole, was emptied.
  virtual void cache_emptied() = 0;

  cca::CUDAAllocator* const target_;
};

// The native allocator's segments, without the history of what happened to them.
inline cca::SnapshotInfo snapshot(cca::CUDAAllocator& allocator) {
#if LMS_TORCH_AT_LEAST(11)
  return allocator.snapshot({0, 0}, /*include_traces=*/false);
#else
  return allocator.snapshot();
#endif
}

} // namespace torch::cuda::lms::compat
