// Runtime API: devices, errors, entry points.
#include <dlfcn.h>

#include <cstdio>
#include <string>

#include "capture.h"
#include "properties.h"
#include "state.h"

using namespace simcuda;

namespace {

constexpr int kVersion = SIMCUDA_CUDART_MAJOR >= 13 ? 13000 : 12040;

bool exists(int device) {
  return device >= 0 && device < state().options.devices;
}

cudaError_t properties(void* out, int device) {
  if (!exists(device))
    return fail(cudaErrorInvalidDevice);
  const Lock lock(state().mutex);
  write_properties(out, device, state().memory.capacity());
  return cudaSuccess;
}

cudaError_t unsupported_entry_point() {
  log("an unsupported driver entry point was called");
  return fail(cudaErrorNotSupported);
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress,
     "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered,
     "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered,
     "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure,
     "cudaErrorLaunchFailure",
     "a kernel was launched: the simulated device runs operators, not kernels"},
    {cudaErrorNotSupported,
     "cudaErrorNotSupported",
     "operation not supported by the simulated device"},
    {cudaErrorStreamCaptureUnsupported,
     "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated,
     "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation,
     "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent,
     "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kOther{
      cudaErrorInvalidValue, "cudaErrorSimulated", "an error that a test asked for"};
  for (const ErrorText& known : kErrors) {
    if (known.error == error)
      return known;
  }
  return kOther;
}

} // namespace

SIMCUDA_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().options.devices;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

SIMCUDA_API cudaError_t cudaGetDevice(int* device) {
  *device = this_thread().device;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaSetDevice(int device) {
  if (!exists(device))
    return fail(cudaErrorInvalidDevice);
  this_thread().device = device;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaRuntimeGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}

SIMCUDA_API cudaError_t cudaGetLastError() {
  const cudaError_t error = this_thread().last_error;
  this_thread().last_error = cudaSuccess;
  return error;
}

SIMCUDA_API cudaError_t cudaPeekAtLastError() {
  return this_thread().last_error;
}

SIMCUDA_API const char* cudaGetErrorName(cudaError_t error) {
  return text_of(error).name;
}

SIMCUDA_API const char* cudaGetErrorString(cudaError_t error) {
  return text_of(error).text;
}

// The name of this function in binaries built with the headers of CUDA 12 and of CUDA 13.
SIMCUDA_API cudaError_t cudaGetDeviceProperties_v2(void* out, int device) {
  return properties(out, device);
}

SIMCUDA_API cudaError_t cudaGetDeviceProperties(void* out, int device) {
  return properties(out, device);
}

SIMCUDA_API cudaError_t cudaDeviceGetAttribute(int* value, int number, int device) {
  SIMCUDA_ENTER("cudaDeviceGetAttribute");
  if (!exists(device))
    return fail(cudaErrorInvalidDevice);
  *value = attribute(number, device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (!exists(device))
    return fail(cudaErrorInvalidDevice);
  std::snprintf(
      id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIMCUDA_ENTER("cudaDeviceGetStreamPriorityRange");
  if (least != nullptr)
    *least = 0;
  if (greatest != nullptr)
    *greatest = -5;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaDeviceSynchronize() {
  SIMCUDA_ENTER("cudaDeviceSynchronize");
  {
    const Lock lock(state().mutex);
    if (!unsafe_call_allowed())
      return fail(cudaErrorStreamCaptureUnsupported);
  }
  synchronize_device(this_thread().device);
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

SIMCUDA_API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol,
    void** function,
    unsigned,
    unsigned long long,
    int* found) {
  Dl_info info;
  static void* self = dladdr(reinterpret_cast<void*>(&cudaGetDeviceCount), &info) != 0
                          ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                          : nullptr;
  *function = self != nullptr ? dlsym(self, symbol) : nullptr;
  if (*function == nullptr) {
    // c10 asks for every entry point that it knows before it uses the first one, so all must be
    // found.
    log("driver entry point %s is not simulated", symbol);
    *function = reinterpret_cast<void*>(&unsupported_entry_point);
  }
  if (found != nullptr)
    *found = 0;
  return cudaSuccess;
}

SIMCUDA_API cudaError_t
cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags, int* found) {
  return cudaGetDriverEntryPointByVersion(symbol, function, 0, flags, found);
}

// libcudart does the same: later, c10 looks for libcuda.so.1 among the libraries that are already
// loaded. The simulated one is in the folder of this library; a machine with a GPU also has another
// one.
__attribute__((constructor)) static void load_driver() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<void*>(&load_driver), &own) == 0)
    return;
  const std::string path = own.dli_fname;
  dlopen((path.substr(0, path.rfind('/') + 1) + "libcuda.so.1").c_str(), RTLD_LAZY | RTLD_GLOBAL);
}
