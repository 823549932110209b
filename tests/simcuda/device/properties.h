// The properties of the simulated device, an imaginary GPU with the features of an A100.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cuda_types.h"

namespace simcuda {

inline constexpr int kMajor = 8;
inline constexpr int kMinor = 0;
inline constexpr int kMultiprocessors = 4;
inline constexpr int kWarp = 32;
inline constexpr int kThreadsPerBlock = 1024;
inline constexpr int kThreadsPerMultiprocessor = 2048;
inline constexpr int kBlocksPerMultiprocessor = 32;
inline constexpr int kRegisters = 65536;
inline constexpr int kCacheBytes = 4 << 20;
inline constexpr int kConstantBytes = 65536;
inline constexpr int kSharedPerBlock = 49152;
inline constexpr int kSharedPerBlockOptIn = 166912;
inline constexpr int kSharedPerMultiprocessor = 167936;
inline constexpr int kBlockDimensions[3] = {1024, 1024, 64};
inline constexpr int kGridDimensions[3] = {2147483647, 65535, 65535};

// Byte offsets in cudaDeviceProp; CUDA 13 dropped fields, so the later ones moved.
struct PropertyOffsets {
  static constexpr bool k13 = SIMCUDA_CUDART_MAJOR >= 13;
  static constexpr bool k11 = SIMCUDA_CUDART_MAJOR < 12; // shorter, otherwise like 12
  static constexpr size_t kSize = k13 ? 1008 : k11 ? 728 : 1032;
  static constexpr size_t kUuid = 256;
  static constexpr size_t kTotalGlobalMem = 288;
  static constexpr size_t kSharedMemPerBlock = 296;
  static constexpr size_t kRegsPerBlock = 304;
  static constexpr size_t kWarpSize = 308;
  static constexpr size_t kMaxThreadsPerBlock = 320;
  static constexpr size_t kMaxThreadsDim = 324;
  static constexpr size_t kMaxGridSize = 336;
  static constexpr size_t kTotalConstMem = 352;
  static constexpr size_t kMajor = 360;
  static constexpr size_t kMinor = 364;
  static constexpr size_t kMultiProcessorCount = k13 ? 384 : 388;
  static constexpr size_t kCanMapHostMemory = k13 ? 392 : 400;
  static constexpr size_t kConcurrentKernels = k13 ? 560 : 576;
  static constexpr size_t kPciBusId = k13 ? 568 : 584;
  static constexpr size_t kAsyncEngineCount = k13 ? 584 : 600;
  static constexpr size_t kUnifiedAddressing = k13 ? 588 : 604;
  static constexpr size_t kL2CacheSize = k13 ? 596 : 616;
  static constexpr size_t kMaxThreadsPerMultiProcessor = k13 ? 604 : 624;
  static constexpr size_t kStreamPrioritiesSupported = k13 ? 608 : 628;
  static constexpr size_t kSharedMemPerMultiprocessor = k13 ? 624 : 640;
  static constexpr size_t kRegsPerMultiprocessor = k13 ? 632 : 648;
  static constexpr size_t kCooperativeLaunch = k13 ? 668 : 688;
  static constexpr size_t kSharedMemPerBlockOptin = k13 ? 672 : 696;
  static constexpr size_t kMaxBlocksPerMultiProcessor = k13 ? 688 : 712;
  static constexpr size_t kHostRegisterSupported = k13 ? 704 : 728;
};

inline void write_properties(void* properties, int device, size_t capacity) {
  using At = PropertyOffsets;
  char* bytes = static_cast<char*>(properties);
  std::memset(bytes, 0, At::kSize);
  const auto put = [bytes](size_t offset, auto value) {
    std::memcpy(bytes + offset, &value, sizeof value);
  };
  std::snprintf(bytes, At::kUuid, "Simulated CUDA device");
  put(At::kUuid, static_cast<uint64_t>(device + 1));
  put(At::kTotalGlobalMem, capacity);
  put(At::kSharedMemPerBlock, size_t{kSharedPerBlock});
  put(At::kRegsPerBlock, kRegisters);
  put(At::kWarpSize, kWarp);
  put(At::kMaxThreadsPerBlock, kThreadsPerBlock);
  std::memcpy(bytes + At::kMaxThreadsDim, kBlockDimensions, sizeof kBlockDimensions);
  std::memcpy(bytes + At::kMaxGridSize, kGridDimensions, sizeof kGridDimensions);
  put(At::kTotalConstMem, size_t{kConstantBytes});
  put(At::kMajor, kMajor);
  put(At::kMinor, kMinor);
  put(At::kMultiProcessorCount, kMultiprocessors);
  put(At::kCanMapHostMemory, 1);
  put(At::kConcurrentKernels, 1);
  put(At::kPciBusId, device + 1);
  put(At::kAsyncEngineCount, 2);
  put(At::kUnifiedAddressing, 1);
  put(At::kL2CacheSize, kCacheBytes);
  put(At::kMaxThreadsPerMultiProcessor, kThreadsPerMultiprocessor);
  put(At::kStreamPrioritiesSupported, 1);
  put(At::kSharedMemPerMultiprocessor, size_t{kSharedPerMultiprocessor});
  put(At::kRegsPerMultiprocessor, kRegisters);
  put(At::kCooperativeLaunch, 1);
  put(At::kSharedMemPerBlockOptin, size_t{kSharedPerBlockOptIn});
  put(At::kMaxBlocksPerMultiProcessor, kBlocksPerMultiprocessor);
  if (!At::k11)
    put(At::kHostRegisterSupported, 1);
}

// cudaDevAttr numbers.
inline int attribute(int number, int device) {
  switch (number) {
    case 1:
      return kThreadsPerBlock;
    case 2:
    case 3:
    case 4:
      return kBlockDimensions[number - 2];
    case 5:
    case 6:
    case 7:
      return kGridDimensions[number - 5];
    case 8:
      return kSharedPerBlock;
    case 9:
      return kConstantBytes;
    case 10:
      return kWarp;
    case 12:
      return kRegisters;
    case 16:
      return kMultiprocessors;
    case 19:
      return 1; // can map host memory
    case 31:
      return 1; // concurrent kernels
    case 33:
      return device + 1; // PCI bus
    case 38:
      return kCacheBytes;
    case 39:
      return kThreadsPerMultiprocessor;
    case 40:
      return 2; // copy engines
    case 41:
      return 1; // unified addressing
    case 75:
      return kMajor;
    case 76:
      return kMinor;
    case 78:
      return 1; // stream priorities
    case 81:
      return kSharedPerMultiprocessor;
    case 82:
      return kRegisters;
    case 91:
      return 1; // kernels use registered host memory by its own address
    case 95:
      return 1; // cooperative launch
    case 97:
      return kSharedPerBlockOptIn;
    case 99:
      return 1; // host registration
    case 102:
      return 1; // virtual memory management
    case 106:
      return kBlocksPerMultiprocessor;
    default:
      return 0;
  }
}

} // namespace simcuda
