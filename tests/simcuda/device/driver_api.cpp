// Driver API: contexts and virtual memory management, which torch's expandable segments use. Faults
// and counts work as for the runtime API.
#include "capture.h"
#include "properties.h"
#include "state.h"
#include "transfer.h"

using namespace simcuda;

extern "C" const char* cudaGetErrorString(cudaError_t error);
extern "C" cudaError_t cudaDriverGetVersion(int* version);

namespace {

size_t round_to_page(size_t size) {
  return (size + kLargePage - 1) / kLargePage * kLargePage;
}

void* context_of(int device) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
}

// The start of CUmemAllocationProp.
struct AllocationProperties {
  int type;
  int handle_types;
  int location_type;
  int device;
};

} // namespace

SIMCUDA_API cudaError_t cuInit(unsigned) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuDriverGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}

SIMCUDA_API cudaError_t cuDeviceGetCount(int* count) {
  *count = state().options.devices;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuDeviceGetAttribute(int* value, int number, int device) {
  *value = attribute(number, device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuCtxGetCurrent(void** context) {
  *context = context_of(this_thread().device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuCtxSetCurrent(void* context) {
  if (context != nullptr) {
    this_thread().device = static_cast<int>(reinterpret_cast<uintptr_t>(context) - 1);
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = context_of(device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuGetErrorString(cudaError_t error, const char** text) {
  SIMCUDA_ENTER_DRIVER("cuGetErrorString");
  *text = cudaGetErrorString(error);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuPointerGetAttribute(int* value, int attribute, uintptr_t address) {
  constexpr int kMemoryType = 2;
  constexpr int kDeviceOrdinal = 9;
  const Lock lock(state().mutex);
  const int owner = state().memory.owner_of(address);
  if (owner < 0)
    return cudaErrorInvalidValue;
  if (attribute == kMemoryType) {
    *value = cudaMemoryTypeDevice;
  } else if (attribute == kDeviceOrdinal) {
    *value = owner;
  } else {
    return cudaErrorNotSupported;
  }
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuMemGetAddressRange(uintptr_t* begin, size_t* size, uintptr_t address) {
  const Lock lock(state().mutex);
  const auto [found, length] = state().memory.allocation_of(address);
  if (length == 0)
    return cudaErrorInvalidValue;
  if (begin != nullptr)
    *begin = found;
  if (size != nullptr)
    *size = length;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuMemGetAllocationGranularity(size_t* granularity, const void*, int) {
  *granularity = kLargePage;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cuMemAddressReserve(uintptr_t* address, size_t size, size_t, uintptr_t, unsigned long long) {
  SIMCUDA_ENTER("cuMemAddressReserve");
  const Lock lock(state().mutex);
  return state().memory.reserve(this_thread().device, size, address);
}

SIMCUDA_API cudaError_t cuMemAddressFree(uintptr_t address, size_t) {
  const Lock lock(state().mutex);
  return state().memory.unreserve(address);
}

SIMCUDA_API cudaError_t cuMemCreate(
    uint64_t* handle,
    size_t size,
    const AllocationProperties* properties,
    unsigned long long) {
  SIMCUDA_ENTER("cuMemCreate");
  const Lock lock(state().mutex);
  if (properties->device < 0 || properties->device >= state().options.devices) {
    return cudaErrorInvalidDevice;
  }
  state().time.issue(Clockwork::kMapping);
  return state().memory.create_physical(properties->device, round_to_page(size), handle);
}

SIMCUDA_API cudaError_t cuMemRelease(uint64_t handle) {
  const Lock lock(state().mutex);
  return state().memory.release_physical(handle);
}

SIMCUDA_API cudaError_t
cuMemMap(uintptr_t address, size_t size, size_t offset, uint64_t handle, unsigned long long) {
  SIMCUDA_ENTER("cuMemMap");
  const Lock lock(state().mutex);
  state().race.forget(address, size);
  return state().memory.map(address, size, offset, handle);
}

SIMCUDA_API cudaError_t cuMemUnmap(uintptr_t address, size_t size) {
  SIMCUDA_ENTER("cuMemUnmap");
  int device = -1;
  {
    const Lock lock(state().mutex);
    device = state().memory.device_of(address);
  }
  if (device < 0)
    return cudaErrorInvalidValue;
  drain_device(device);
  const Lock lock(state().mutex);
  state().time.issue(Clockwork::kMapping);
  state().race.forget(address, size);
  return state().memory.unmap(address, size);
}

SIMCUDA_API cudaError_t cuMemSetAccess(uintptr_t, size_t, const void*, size_t) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cuMemsetD32Async(uintptr_t address, unsigned value, size_t count, cudaStream_t stream) {
  return fill(
      "cuMemsetD32Async",
      reinterpret_cast<void*>(address),
      value,
      sizeof value,
      count,
      stream,
      false);
}

SIMCUDA_API cudaError_t cuLogsRegisterCallback(void*, void*, void** handle) {
  if (handle != nullptr)
    *handle = context_of(0);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cuLogsUnregisterCallback(void*) {
  return cudaSuccess;
}
