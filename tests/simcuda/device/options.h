// The options that a test chose before the process loaded the simulated device.
#pragma once

#include <cstddef>

namespace simcuda {

struct Options {
  int devices = 1;
  size_t device_bytes = 0; // capacity of each device
  size_t host_bytes = 0; // maximum of pinned host memory; 0 means unlimited
  bool race = true; // happens-before checker
  bool poison = true; // fill new memory with a pattern
  bool bytes = true; // copies, fills and LMS's kernels move bytes; otherwise they only take memory
  bool async = false; // run each stream in a thread of its own
  int delay_us = 0; // with async: maximum delay of the start of each operation
  bool timing = false; // give every operation a duration (clockwork.h)
  double to_host = 52000; // with timing: bytes of copies per microsecond
  double to_device = 53600;
  int query_notready = 0; // how often each event says "not ready" although it is done
  bool log = false; // report faults, races and unsupported calls on stderr

  // Reads the SIMCUDA_* environment variables, which simcuda.start() sets.
  static Options from_environment();
};

inline constexpr int kMaxDevices = 16;

} // namespace simcuda
