// Runtime API: kernels. Operators run on the CPU here (see ops/). If a kernel is launched
// nevertheless, its operator has no CPU version: the launch is counted by name, and fails.
#include <cstring>
#include <vector>

#include "state.h"

using namespace simcuda;

namespace {

struct LaunchConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<LaunchConfiguration> t_configurations;

cudaError_t launch(const void* function) {
  SIMCUDA_ENTER("cudaLaunchKernel");
  const Lock lock(state().mutex);
  const auto it = state().kernel_names.find(function);
  const char* name = it == state().kernel_names.end() ? "unknown kernel" : it->second;
  ++state().launches[name];
  log("kernel %s launched", name);
  return fail(cudaErrorLaunchFailure);
}

} // namespace

SIMCUDA_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}

SIMCUDA_API void __cudaRegisterFatBinaryEnd(void**) {}

SIMCUDA_API void __cudaUnregisterFatBinary(void**) {}

SIMCUDA_API void __cudaRegisterFunction(
    void**,
    const char* host_function,
    char*,
    const char* name,
    int,
    void*,
    void*,
    void*,
    void*,
    int*) {
  const Lock lock(state().mutex);
  state().kernel_names[host_function] = name;
}

SIMCUDA_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

SIMCUDA_API char __cudaInitModule(void**) {
  return 0;
}

SIMCUDA_API unsigned
__cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  t_configurations.push_back({grid, block, shared, stream});
  return 0;
}

SIMCUDA_API cudaError_t
__cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, cudaStream_t* stream) {
  const LaunchConfiguration top = t_configurations.back();
  t_configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *stream = top.stream;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
__cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch(kernel);
}

SIMCUDA_API cudaError_t
cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch(function);
}

SIMCUDA_API cudaError_t
cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return launch(function);
}

SIMCUDA_API cudaError_t cudaLaunchKernelExC(const void*, const void* function, void**) {
  return launch(function);
}

SIMCUDA_API cudaError_t cudaFuncSetAttribute(const void*, int, int) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaFuncGetAttributes(void* attributes, const void*) {
  constexpr size_t kSize = 144;
  constexpr size_t kMaxThreadsPerBlock = 24; // followed by registers, PTX and binary version
  constexpr int kValues[] = {1024, 32, 80, 80};
  std::memset(attributes, 0, kSize);
  std::memcpy(static_cast<char*>(attributes) + kMaxThreadsPerBlock, kValues, sizeof kValues);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks,
    const void*,
    int,
    size_t,
    unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
