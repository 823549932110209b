#include "fault.h"

#include <chrono>
#include <cstdio>

namespace simcuda {

cudaError_t CallLog::enter(const char* api) {
  ++counts_[api];
  cudaError_t error = broken_;
  for (Fault& fault : faults_) {
    if (fault.api != api)
      continue;
    if (fault.remaining > 0)
      --fault.remaining;
    if (fault.remaining != 0)
      continue;
    error = fault.error;
    if (!fault.from_then_on)
      fault.remaining = -1; // used up
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

void Gate::hold(const std::string& api, int device, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_[api] = {device, seconds};
}

void Gate::release(const std::string& api) {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.erase(api);
  changed_.notify_all();
}

void Gate::release_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.clear();
  changed_.notify_all();
}

void Gate::pass(const char* api, int device) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = held_.find(api);
  if (found == held_.end() || (found->second.device >= 0 && found->second.device != device))
    return;
  const std::chrono::duration<double> longest(found->second.seconds);
  ++waiting_[api];
  changed_.wait_for(lock, longest, [&] { return held_.count(api) == 0; });
  --waiting_[api];
}

long Gate::waiting(const std::string& api) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waiting_.find(api);
  return found == waiting_.end() ? 0 : found->second;
}

} // namespace simcuda
