// Driver API: modules, and launches of their kernels, which run on the CPU (cpu_kernels.h).
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "cpu_kernels.h"
#include "properties.h"
#include "state.h"

using namespace simcuda;

namespace {

constexpr int kInvalidImage = 200;
constexpr int kNotFound = 500;

struct Module {
  int device;
  std::unique_ptr<CpuModule> code;
  std::map<std::string, CpuModule::Kernel> kernels;
};

struct Modules {
  std::map<void*, std::unique_ptr<Module>> loaded;
  std::map<const void*, Module*> owners; // the module of each kernel
  std::map<const void*, int> shared; // bytes that each kernel may have, if that was set
};

Modules& modules() {
  static auto* const all = new Modules;
  return *all;
}

void* view(const void* pointer) {
  return state().memory.host_view(pointer);
}

void access(const Stream& stream, const void* pointer, size_t size, AccessKind kind) {
  if (stream.capture != 0)
    return; // captured work is not done yet
  state().race.access(
      stream.actor,
      stream.clock,
      reinterpret_cast<uintptr_t>(pointer),
      size,
      kind,
      "a kernel of the runtime");
}

int touch(void* stream, const void* pointer, size_t size, int write) {
  if (!state().memory.accessible(reinterpret_cast<uintptr_t>(pointer), size) ||
      state().host.freed(pointer)) {
    log("cuLaunchKernel: %zu bytes at %p are not, or not all, live memory", size, pointer);
    return 0;
  }
  access(
      *static_cast<Stream*>(stream), pointer, size, write ? AccessKind::kWrite : AccessKind::kRead);
  return 1;
}

// In asynchronous mode, the stream's clock may have advanced when the kernel runs, so this is only
// checked in synchronous mode.
void used(void* stream, const void* pointer, size_t size, int write) {
  if (state().options.async)
    return;
  const Lock lock(state().mutex);
  access(
      *static_cast<Stream*>(stream), pointer, size, write ? AccessKind::kWrite : AccessKind::kRead);
}

void napped(void*, unsigned long long nanoseconds) {
  state().napped += nanoseconds;
}

// As on a GPU, no call succeeds any more.
void trap(void*) {
  const Lock lock(state().mutex);
  state().calls.break_with(cudaErrorLaunchFailure);
}

} // namespace

SIMCUDA_API cudaError_t cuModuleLoadData(void** module, const void* image) {
  SIMCUDA_ENTER_DRIVER("cuModuleLoadData");
  std::unique_ptr<CpuModule> code = CpuModule::load(image);
  if (code == nullptr)
    return static_cast<cudaError_t>(kInvalidImage);
  const Lock lock(state().mutex);
  auto made = std::make_unique<Module>();
  made->device = this_thread().device;
  made->code = std::move(code);
  *module = made.get();
  modules().loaded[*module] = std::move(made);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuModuleUnload(void* module) {
  SIMCUDA_ENTER_DRIVER("cuModuleUnload");
  int device = -1;
  {
    const Lock lock(state().mutex);
    const auto it = modules().loaded.find(module);
    if (it == modules().loaded.end())
      return cudaErrorInvalidResourceHandle;
    device = it->second->device;
  }
  drain_device(device); // its kernels may still be running
  const Lock lock(state().mutex);
  const auto it = modules().loaded.find(module);
  for (const auto& [name, kernel] : it->second->kernels) {
    modules().owners.erase(&kernel);
    modules().shared.erase(&kernel);
  }
  modules().loaded.erase(it);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuModuleGetFunction(const void** function, void* module, const char* name) {
  SIMCUDA_ENTER_DRIVER("cuModuleGetFunction");
  const Lock lock(state().mutex);
  const auto it = modules().loaded.find(module);
  if (it == modules().loaded.end())
    return cudaErrorInvalidResourceHandle;
  CpuModule::Kernel kernel;
  if (!it->second->code->find(name, &kernel))
    return static_cast<cudaError_t>(kNotFound);
  const auto added = it->second->kernels.emplace(name, kernel).first;
  *function = &added->second;
  modules().owners[*function] = it->second.get();
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuFuncSetAttribute(const void* function, int attribute, int value) {
  SIMCUDA_ENTER_DRIVER("cuFuncSetAttribute");
  constexpr int kMostShared = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  const Lock lock(state().mutex);
  if (modules().owners.count(function) == 0)
    return cudaErrorInvalidResourceHandle;
  if (attribute != kMostShared || value < 0 || value > kSharedPerBlockOptIn)
    return cudaErrorInvalidValue;
  modules().shared[function] = value;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuLaunchKernel(
    const void* function,
    unsigned blocks,
    unsigned,
    unsigned,
    unsigned threads,
    unsigned,
    unsigned,
    unsigned shared,
    cudaStream_t handle,
    void** parameters,
    void**) {
  SIMCUDA_ENTER_DRIVER("cuLaunchKernel");
  State& machine = state();
  Stream* stream = nullptr;
  void* work = nullptr;
  const auto* const kernel = static_cast<const CpuModule::Kernel*>(function);
  {
    const Lock lock(machine.mutex);
    const auto owner = modules().owners.find(function);
    if (owner == modules().owners.end()) {
      ++machine.launches["unknown kernel"];
      log("an unknown kernel launched");
      return cudaErrorLaunchFailure;
    }
    const auto allowed = modules().shared.find(function);
    const int most = allowed == modules().shared.end() ? kSharedPerBlock : allowed->second;
    if (threads > unsigned{kThreadsPerBlock} || shared > static_cast<unsigned>(most))
      return cudaErrorInvalidValue;
    stream = machine.stream(handle);
    if (stream == nullptr || stream->device != owner->second->device ||
        this_thread().device != stream->device)
      return cudaErrorInvalidResourceHandle;
    for (const auto& [name, known] : owner->second->kernels) {
      if (&known == kernel) {
        long& most = machine.thread_blocks[name];
        most = std::max<long>(most, blocks);
      }
    }
    machine.begin_operation(*stream);
    const KernelHooks hooks{stream, view, touch, used, napped, trap};
    work = kernel->prepare(&hooks, parameters);
  }
  if (work == nullptr)
    return cudaErrorIllegalAddress;
  stream->queue->push([=] {
    const KernelHooks hooks{stream, view, touch, used, napped, trap};
    if (state().options.bytes)
      kernel->run(&hooks, work, blocks);
  });
  return cudaSuccess;
}

SIMCUDA_API size_t simcuda_live_modules() {
  const Lock lock(state().mutex);
  return modules().loaded.size();
}
