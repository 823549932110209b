#pragma once

#include <torch/csrc/cuda/lms/kernel/library.h>

#include <cuda_runtime_api.h>

#include <string>

namespace torch::cuda::lms {

// Kernels as CUDA C++, which NVRTC compiles on the user's machine: what builds
// this library has no CUDA compiler. In CUDA 10's C++14, without any header.
struct KernelSource {
  const char* name; // of the compiled file, and for the compiler's messages
  const char* text;
};

// The kernels of a source on one device. Compiled once per architecture: the
// result is kept in memory and on disk (cache.h).
// Used under the LMS mutex, with the device current, which the process has used.
class Module {
 public:
  // Throws c10::Error, which says in one line why there will be no kernels.
  explicit Module(const KernelSource& source);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  using Kernel = Library::Handle; // lives as long as the module
  // Throws c10::Error when there is no such kernel.
  Kernel kernel(const char* name) const;

  // The arguments are the kernel's parameters, with exactly their types. Throws
  // c10::Error when the launch is refused.
  template <typename... Arguments>
  void launch(
      Kernel kernel,
      unsigned blocks,
      unsigned threads,
      cudaStream_t stream,
      Arguments... arguments) const {
    void* parameters[] = {&arguments...};
    start(kernel, blocks, threads, stream, parameters);
  }

 private:
  void load(const KernelSource& source);
  void start(
      Kernel kernel,
      unsigned blocks,
      unsigned threads,
      cudaStream_t stream,
      void** parameters) const;

  const Library library_;
  Library::Handle module_ = nullptr;
};

} // namespace torch::cuda::lms
