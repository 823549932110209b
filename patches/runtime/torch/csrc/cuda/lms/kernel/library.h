#pragma once

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// The functions of NVRTC and of the CUDA driver that the runtime calls. They are looked up at run
// time, in the library through which PyTorch itself calls them. The runtime is linked to neither of
// the two, because some machines do not have them, and it does not need their headers.
struct Library {
  // Throws c10::Error if no library is found, or if it lacks a function.
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

  // These exist since CUDA 11; null if they are missing.
  Result (*nvrtcGetCUBINSize)(Program, size_t*);
  Result (*nvrtcGetCUBIN)(Program, char*);
  Result (*nvrtcGetNumSupportedArchs)(int*);
  Result (*nvrtcGetSupportedArchs)(int*);

  Result (*cuModuleLoadData)(Handle*, const void*);
  Result (*cuModuleUnload)(Handle);
  Result (*cuModuleGetFunction)(Handle*, Handle, const char*);
  Result (*cuFuncSetAttribute)(Handle, int, int);
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

  // Throw c10::Error with the name of the call if it did not succeed.
  void check_nvrtc(Result result, const char* call) const;
  void check_driver(Result result, const char* call) const;
};

} // namespace torch::cuda::lms
