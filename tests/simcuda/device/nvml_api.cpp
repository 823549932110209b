// NVML, as far as torch asks: all succeeds, and no process uses a device.
#include "state.h"

using namespace simcuda;

extern "C" cudaError_t cudaDriverGetVersion(int* version);

SIMCUDA_API int nvmlInit_v2() {
  return 0;
}

SIMCUDA_API int nvmlInitWithFlags(unsigned) {
  return 0;
}

SIMCUDA_API int nvmlShutdown() {
  return 0;
}

SIMCUDA_API int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(state().options.devices);
  return 0;
}

SIMCUDA_API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &state(); // only has to be non-null
  return 0;
}

SIMCUDA_API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}

SIMCUDA_API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return cudaDriverGetVersion(version);
}
