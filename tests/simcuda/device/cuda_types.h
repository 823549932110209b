// The part of CUDA's ABI that the simulated device implements. It is declared here rather than
// taken from CUDA's headers, so that building the simulated device needs nothing from NVIDIA.
#pragma once

#include <cstddef>
#include <cstdint>

#define SIMCUDA_API extern "C" __attribute__((visibility("default")))

#ifndef SIMCUDA_CUDART_MAJOR
#error "SIMCUDA_CUDART_MAJOR must be the major version of the libcudart that is simulated"
#endif

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidSymbol = 13,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
};

using cudaStream_t = void*;
using cudaEvent_t = void*;

// Special stream handles.
inline constexpr uintptr_t kLegacyStreamHandle = 1;
inline constexpr uintptr_t kPerThreadStreamHandle = 2;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

enum cudaStreamCaptureStatus : int {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

enum cudaStreamCaptureMode : int {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

enum cudaMemoryType : int {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
};

struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
#if SIMCUDA_CUDART_MAJOR >= 13
  long reserved[8];
#endif
};

struct dim3 {
  unsigned x, y, z;
};
