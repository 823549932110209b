#pragma once

#include <torch/csrc/cuda/lms/compat/forwarding.h>

namespace torch::cuda::lms {

// The allocator tier. It is in front of the native allocator, and makes room before it calls it.
// Once installed, it stays; while LMS is off, it only forwards calls.
class Tier : public compat::ForwardingAllocator {
 public:
  explicit Tier(compat::cca::CUDAAllocator* native) : ForwardingAllocator(native) {}

  // Puts a tier in front of the native allocator, and returns the latter. Throws c10::Error if
  // another allocator than the native one is in use.
  static compat::cca::CUDAAllocator* install();

  c10::DataPtr allocate(size_t bytes) override;
  bool is_simple_data_ptr(const c10::DataPtr& data) const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  void beginAllocateToPool(
      c10::DeviceIndex device,
      compat::MempoolId pool,
      std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, compat::MempoolId pool) override;
  void releasePool(c10::DeviceIndex device, compat::MempoolId pool) override;

 protected:
  void emptying_cache() override;
  void cache_emptied() override;
};

} // namespace torch::cuda::lms
