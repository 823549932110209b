#pragma once

// The seam is the layer between PyTorch 1.13 and its CUDA caching allocator, which consists of
// functions in this release, not of a class. libtorch_lms_seam.so defines functions of the same
// names and is loaded before PyTorch's libraries. Therefore calls from these libraries go to the
// seam, which forwards them to libc10_cuda. No library of PyTorch is changed.

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms::seam {

// The functions of libc10_cuda.
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

// The functions that replace them once LMS was turned on.
struct Hooks : Native {
  // A kernel is about to be launched: code that launches one asks for the current stream first. May
  // throw.
  void (*launching)();
};

constexpr size_t kDevices = 64;

struct Seam {
  // Null until the runtime is loaded.
  std::atomic<const Hooks*> hooks{nullptr};
  const Native& (*native)() = nullptr;

  // Whether a segment of the native allocator was made while a graph was captured. Such a segment
  // belongs to the graph, which replays addresses in it.
  bool (*is_graphs)(int64_t address) = nullptr;

  // The fraction of each device's memory that the process may use; 0 if it was not set.
  std::array<std::atomic<double>, kDevices> fractions{};
};

} // namespace torch::cuda::lms::seam

extern "C" torch::cuda::lms::seam::Seam* lms_seam();
