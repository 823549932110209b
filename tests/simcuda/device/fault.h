// Counts the calls of each API function and makes chosen ones fail.
#pragma once

#include <map>
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

} // namespace simcuda
