#pragma once

#include <torch/csrc/cuda/lms/kernel/library.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace torch::cuda::lms {

// Kernels in CUDA C++, which NVRTC compiles on the user's machine, because LMS is built without a
// CUDA compiler. The code has to be C++14, as in CUDA 10, and cannot include headers.
struct KernelSource {
  const char* name; // the name of the compiled file, also used in the compiler's messages
  const char* text;
};

// The kernels of a source on one device. They are compiled once for each architecture, and the
// result is kept in memory and on disk (cache.h). To make a module does not need the LMS mutex. The
// device must be current, and the process must have used it.
class Module {
 public:
  // Throws c10::Error with a one-line message if the kernels are not available.
  explicit Module(const KernelSource& source);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  using Kernel = Library::Handle; // valid as long as the module exists
  // Throws c10::Error if there is no such kernel.
  Kernel kernel(const char* name) const;

  // Lets launches of the kernel have as much shared memory as thread blocks may have on this
  // device, instead of 48 KiB. Throws c10::Error if that fails.
  void share(Kernel kernel) const;

  // How many thread blocks, the threads of each, and its bytes of shared memory.
  struct Shape {
    unsigned blocks;
    unsigned threads;
    size_t shared = 0;
  };
  // The arguments must have exactly the types of the kernel's parameters. Throws c10::Error if the
  // launch fails.
  template <typename... Arguments>
  void launch(Kernel kernel, const Shape& shape, cudaStream_t stream, Arguments... arguments)
      const {
    void* parameters[] = {&arguments...};
    start(kernel, shape, stream, parameters);
  }

 private:
  void load(const KernelSource& source);
  void start(Kernel kernel, const Shape& shape, cudaStream_t stream, void** parameters) const;

  const Library library_;
  Library::Handle module_ = nullptr;
};

} // namespace torch::cuda::lms
