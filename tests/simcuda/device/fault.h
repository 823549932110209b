// Counts the calls of each API function, makes chosen ones fail, and has chosen ones wait.
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
  void clear_faults() {
    faults_.clear();
  }

  long count(const std::string& api) const;
  const std::map<std::string, long>& counts() const {
    return counts_;
  }
  void reset_counts();

 private:
  struct Fault {
    std::string api;
    long remaining; // calls to let pass, this one included
    cudaError_t error;
    bool from_then_on;
  };

  bool log_;
  std::map<std::string, long> counts_;
  std::vector<Fault> faults_;
};

// Where calls wait until a test lets them go on, as for a device that is not done. Has a lock of
// its own: the machine's is not held by who waits.
class Gate {
 public:
  // Calls of `api` wait from now on, of threads whose current device it is (-1: any), but none for
  // more than so many seconds.
  void hold(const std::string& api, int device, double seconds);
  void release(const std::string& api);
  void release_all();

  void pass(const char* api, int device);

  // How many calls wait.
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
