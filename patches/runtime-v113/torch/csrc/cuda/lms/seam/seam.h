#pragma once

// What stands between PyTorch 1.13 and its CUDA caching allocator, which is a set
// of functions there and no class. libtorch_lms_seam.so defines functions of the
// same names and is loaded before PyTorch's libraries, so that their calls come
// here first; each goes on to libc10_cuda. No library of PyTorch's is changed.

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms::seam {

// libc10_cuda's own functions.
struct Native {
  c10::Allocator* (*get)();
  void* (*raw_alloc)(size_t bytes);
  void* (*raw_alloc_with_stream)(size_t bytes, cudaStream_t stream);
  void (*record_stream)(const c10::DataPtr& data, c10::cuda::CUDAStream stream);
  void (*empty_cache)();
  void (*set_memory_fraction)(double fraction, int device);
  void (*capture_begins)(int device, c10::cuda::CaptureId_t graph, c10::cuda::MempoolId_t pool);
  void (*capture_ends)(int device, c10::cuda::CaptureId_t graph);
  void (*capture_destroyed)(int device, c10::cuda::MempoolId_t pool);
  c10::cuda::CUDAStream (*current_stream)(c10::DeviceIndex device);
  std::vector<c10::cuda::CUDACachingAllocator::SegmentInfo> (*snapshot)();
};

// What takes their place once LMS was turned on.
struct Hooks : Native {
  // A kernel is about to be launched: whoever asks for the current stream does so
  // for that. May throw.
  void (*launching)();
};

constexpr size_t kDevices = 64;

struct Seam {
  // Null until the runtime is loaded.
  std::atomic<const Hooks*> hooks{nullptr};
  const Native& (*native)() = nullptr;

  // Whether a segment of the native allocator's was made while a graph was
  // captured. Then it is the graph's, which replays the addresses in it.
  bool (*is_graphs)(int64_t address) = nullptr;

  // Of a device's memory, the share that the process may have; 0 = nothing was said.
  std::array<std::atomic<double>, kDevices> fractions{};
};

} // namespace torch::cuda::lms::seam

extern "C" torch::cuda::lms::seam::Seam* lms_seam();
