#include "fault.h"

#include <cstdio>

namespace simcuda {

cudaError_t CallLog::enter(const char* api) {
  ++counts_[api];
  cudaError_t error = cudaSuccess;
  for (Fault& fault : faults_) {
    if (fault.api != api)
      continue;
    if (fault.remaining > 0)
      --fault.remaining;
    if (fault.remaining != 0)
      continue;
    error = fault.error;
    if (!fault.from_then_on)
      fault.remaining = -1; // spent
  }
  if (error != cudaSuccess && log_)
    std::fprintf(stderr, "[simcuda] %s: fault %d\n", api, error);
  return error;
}

void CallLog::plan_fault(const std::string& api, long nth, cudaError_t error, bool from_then_on) {
  faults_.push_back({api, nth, error, from_then_on});
}

long CallLog::count(const std::string& api) const {
  const auto it = counts_.find(api);
  return it == counts_.end() ? 0 : it->second;
}

void CallLog::reset_counts() {
  counts_.clear();
}

} // namespace simcuda
