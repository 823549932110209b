// Runtime API: memory and copies.
#include <cstring>

#include "capture.h"
#include "state.h"
#include "transfer.h"

using namespace simcuda;

namespace {

cudaError_t allocate(const char* api, void** pointer, size_t size, int device) {
  SIMCUDA_ENTER(api);
  if (pointer == nullptr)
    return fail(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (size == 0)
    return cudaSuccess;
  const Lock lock(state().mutex);
  if (!unsafe_call_allowed())
    return fail(cudaErrorStreamCaptureUnsupported);
  uintptr_t address = 0;
  if (const cudaError_t error = state().memory.allocate(device, size, &address))
    return fail(error);
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t release(const char* api, void* pointer) {
  SIMCUDA_ENTER(api);
  if (pointer == nullptr)
    return cudaSuccess;
  State& machine = state();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  int device = -1;
  {
    const Lock lock(machine.mutex);
    device = machine.memory.owner_of(address);
    if (device < 0)
      return fail(cudaErrorInvalidValue);
  }
  synchronize_device(device); // cudaFree waits for the device
  const Lock lock(machine.mutex);
  const size_t size = machine.memory.allocation_of(address).second;
  if (const cudaError_t error = machine.memory.free(address))
    return fail(error);
  machine.race.forget(address, size);
  return cudaSuccess;
}

// If the program frees host memory that queued work still uses, this is a bug, even if the driver
// happens to wait. It is reported as a write by the host.
void give_up_host_memory(void* pointer, size_t size, const char* what) {
  State& machine = state();
  {
    const Lock lock(machine.mutex);
    machine.host_clock.tick(kHost);
    machine.race.access(
        kHost,
        machine.host_clock,
        reinterpret_cast<uintptr_t>(pointer),
        size,
        AccessKind::kWrite,
        what);
    machine.race.forget(reinterpret_cast<uintptr_t>(pointer), size);
  }
  for (int device = 0; device < machine.options.devices; ++device)
    drain_device(device);
}

} // namespace

SIMCUDA_API cudaError_t cudaMalloc(void** pointer, size_t size) {
  return allocate("cudaMalloc", pointer, size, this_thread().device);
}

SIMCUDA_API cudaError_t cudaFree(void* pointer) {
  return release("cudaFree", pointer);
}

SIMCUDA_API cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t handle) {
  int device = 0;
  {
    const Lock lock(state().mutex);
    const Stream* stream = state().stream(handle);
    if (stream == nullptr)
      return fail(cudaErrorInvalidResourceHandle);
    device = stream->device;
  }
  return allocate("cudaMallocAsync", pointer, size, device);
}

SIMCUDA_API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  return release("cudaFreeAsync", pointer);
}

SIMCUDA_API cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  SIMCUDA_ENTER("cudaMemGetInfo");
  const Lock lock(state().mutex);
  const DeviceMemory& memory = state().memory;
  const size_t used = memory.used(this_thread().device);
  *total = memory.capacity();
  *available = *total > used ? *total - used : 0;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  SIMCUDA_ENTER("cudaHostAlloc");
  const Lock lock(state().mutex);
  if (!unsafe_call_allowed())
    return fail(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = state().host.allocate(size, pointer))
    return fail(error);
  state().race.forget(reinterpret_cast<uintptr_t>(*pointer), size);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return cudaHostAlloc(pointer, size, 0);
}

SIMCUDA_API cudaError_t cudaFreeHost(void* pointer) {
  SIMCUDA_ENTER("cudaFreeHost");
  if (pointer == nullptr)
    return cudaSuccess;
  size_t size = 0;
  {
    const Lock lock(state().mutex);
    size = state().host.size_of(pointer);
    if (size == 0)
      return fail(cudaErrorInvalidValue);
  }
  give_up_host_memory(pointer, size, "cudaFreeHost");
  const Lock lock(state().mutex);
  return fail(state().host.free(pointer));
}

SIMCUDA_API cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned) {
  SIMCUDA_ENTER("cudaHostRegister");
  const Lock lock(state().mutex);
  if (!unsafe_call_allowed())
    return fail(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = state().host.add(pointer, size))
    return fail(error);
  state().race.forget(reinterpret_cast<uintptr_t>(pointer), size);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaHostUnregister(void* pointer) {
  SIMCUDA_ENTER("cudaHostUnregister");
  size_t size = 0;
  {
    const Lock lock(state().mutex);
    size = state().host.size_of(pointer);
    if (size == 0)
      return fail(cudaErrorHostMemoryNotRegistered);
  }
  give_up_host_memory(pointer, size, "cudaHostUnregister");
  const Lock lock(state().mutex);
  return fail(state().host.remove(pointer));
}

SIMCUDA_API cudaError_t
cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
  *device_pointer = host_pointer;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  const Lock lock(state().mutex);
  std::memset(out, 0, sizeof *out);
  const int owner = state().memory.owner_of(reinterpret_cast<uintptr_t>(pointer));
  if (owner >= 0) {
    out->type = cudaMemoryTypeDevice;
    out->device = owner;
    out->device_pointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  out->host_pointer = const_cast<void*>(pointer);
  if (state().host.pinned(pointer)) {
    out->type = cudaMemoryTypeHost;
    out->device_pointer = out->host_pointer;
  } else {
    out->type = cudaMemoryTypeUnregistered;
    out->device = -2; // as the real runtime does
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, int) {
  return copy("cudaMemcpy", to, from, size, nullptr, true);
}

SIMCUDA_API cudaError_t
cudaMemcpyAsync(void* to, const void* from, size_t size, int, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, size, stream, false);
}

SIMCUDA_API cudaError_t
cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return copy("cudaMemcpyPeerAsync", to, from, size, stream, false);
}

SIMCUDA_API cudaError_t cudaMemcpy2DAsync(
    void* to,
    size_t to_pitch,
    const void* from,
    size_t from_pitch,
    size_t width,
    size_t rows,
    int,
    cudaStream_t stream) {
  return copy(
      "cudaMemcpy2DAsync", Copy{to, to_pitch, from, from_pitch, width, rows}, stream, false);
}

// Symbols are variables of kernels, and kernels do not run here.
SIMCUDA_API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  *pointer = nullptr;
  return fail(cudaErrorInvalidSymbol);
}

SIMCUDA_API cudaError_t cudaMemset(void* pointer, int value, size_t size) {
  return fill("cudaMemset", pointer, static_cast<unsigned>(value), 1, size, nullptr, true);
}

SIMCUDA_API cudaError_t
cudaMemsetAsync(void* pointer, int value, size_t size, cudaStream_t stream) {
  return fill("cudaMemsetAsync", pointer, static_cast<unsigned>(value), 1, size, stream, false);
}

// Memory pools: one for each device, which keeps no free memory.
SIMCUDA_API cudaError_t cudaDeviceGetDefaultMemPool(void** pool, int device) {
  *pool = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolSetAttribute(void*, int, void*) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  // Reserved and used memory; the numbers before it are settings of the pool.
  constexpr int kFirstSize = 5;
  const Lock lock(state().mutex);
  const auto device = static_cast<int>(reinterpret_cast<uintptr_t>(pool) - 1);
  const uint64_t used = attribute >= kFirstSize ? state().memory.used(device) : 0;
  std::memcpy(value, &used, sizeof used);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolTrimTo(void*, size_t) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaMemPoolSetAccess(void*, const void*, size_t) {
  return cudaSuccess;
}
