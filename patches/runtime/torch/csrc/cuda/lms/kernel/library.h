#pragma once

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// What the runtime calls of NVRTC and of the CUDA driver. Both are found at run
// time, through the library by which PyTorch itself reaches them: this one is
// linked to neither, because there are machines without, and no header of theirs
// is needed.
struct Library {
  // Throws c10::Error when there is none, or when it lacks a function.
  Library();

  using Result = int; // 0 is success
  using Program = void*;
  using Handle = void*; // CUmodule, CUfunction, CUstream

  Result (*nvrtcVersion)(int*, int*);
  Result (*nvrtcCreateProgram)(
      Program*,
      const char*,
      const char*,
      int,
      const char* const*,
      const char* const*);
  Result (*nvrtcDestroyProgram)(Program*);
  Result (*nvrtcCompileProgram)(Program, int, const char* const*);
  Result (*nvrtcGetProgramLogSize)(Program, size_t*);
  Result (*nvrtcGetProgramLog)(Program, char*);
  Result (*nvrtcGetPTXSize)(Program, size_t*);
  Result (*nvrtcGetPTX)(Program, char*);
  const char* (*nvrtcGetErrorString)(Result);

  // Since CUDA 11; null where there are none.
  Result (*nvrtcGetCUBINSize)(Program, size_t*);
  Result (*nvrtcGetCUBIN)(Program, char*);
  Result (*nvrtcGetNumSupportedArchs)(int*);
  Result (*nvrtcGetSupportedArchs)(int*);

  Result (*cuModuleLoadData)(Handle*, const void*);
  Result (*cuModuleUnload)(Handle);
  Result (*cuModuleGetFunction)(Handle*, Handle, const char*);
  Result (*cuLaunchKernel)(
      Handle function,
      unsigned grid_x,
      unsigned grid_y,
      unsigned grid_z,
      unsigned block_x,
      unsigned block_y,
      unsigned block_z,
      unsigned shared_bytes,
      Handle stream,
      void** parameters,
      void** extra);
  Result (*cuGetErrorString)(Result, const char**);

  // Each throws c10::Error, with the name of the call, unless it succeeded.
  void check_nvrtc(Result result, const char* call) const;
  void check_driver(Result result, const char* call) const;
};

} // namespace torch::cuda::lms
