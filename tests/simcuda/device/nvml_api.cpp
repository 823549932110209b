// The part of NVML that torch uses. All calls succeed, and no process uses a device.
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
  *device = &state(); // any non-null value
  return 0;
}

SIMCUDA_API int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}

// The start of nvmlGpuFabricInfoV_t, which is the same in all of its versions.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state; // 0: not supported
};

// There is no fabric, so torch shares memory by file descriptors only.
SIMCUDA_API int nvmlDeviceGetGpuFabricInfoV(void*, FabricInfo* info) {
  info->state = 0;
  return 0;
}

SIMCUDA_API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return cudaDriverGetVersion(version);
}
