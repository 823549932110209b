// Counts the calls of each API function, and lets chosen calls fail or wait.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_types.h"

namespace simcuda {

class CallLog {
 public:
  explicit CallLog(bool log) : log_(log) {}

  // Counts a call; returns the error that a test planned for it, or cudaSuccess.
  cudaError_t enter(const char* api);

  // Makes the nth call from now on fail with `error`; with `from_then_on`, every later call too.
  void plan_fault(const std::string& api, long nth, cudaError_t error, bool from_then_on);
  // Makes every call fail from now on.
  void break_with(cudaError_t error) {
    broken_ = error;
  }
  void clear_faults() {
    faults_.clear();
    broken_ = cudaSuccess;
  }

  long count(const std::string& api) const;
  const std::map<std::string, long>& counts() const {
    return counts_;
  }
  void reset_counts();

 private:
  struct Fault {
    std::string api;
    long remaining; // calls until it fails, including the failing one
    cudaError_t error;
    bool from_then_on;
  };

  bool log_;
  cudaError_t broken_ = cudaSuccess;
  std::map<std::string, long> counts_;
  std::vector<Fault> faults_;
};

// Makes calls wait until a test releases them, as if the device were not done. It has its own lock,
// because a waiting call must not hold the lock of the simulated machine.
class Gate {
 public:
  // From now on, calls of `api` wait if the thread's current device is this one (-1: any), each for
  // at most this number of seconds.
  void hold(const std::string& api, int device, double seconds);
  void release(const std::string& api);
  void release_all();

  void pass(const char* api, int device);

  // The number of calls that are waiting.
  long waiting(const std::string& api);

 private:
  struct Held {
    int device;
    double seconds;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Held> held_;
  std::map<std::string, long> waiting_;
};

} // namespace simcuda
