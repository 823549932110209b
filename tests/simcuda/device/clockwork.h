// A model of time: when the host, the streams and the link would be done with what they were given.
#pragma once

#include <cstddef>

#include "options.h"

namespace simcuda {

// Work takes no time on the simulated device. With this, every operation is given a duration, and
// streams, events and the host's waits add them up: nothing is measured, and nobody waits. Times
// are seconds since the start. Only the threads that issue operators move the host's time; what
// others wait for is done at once.
class Clockwork {
 public:
  enum class Way { ToHost, ToDevice, Within };

  explicit Clockwork(const Options& options) : options_(options) {}

  bool on() const {
    return options_.timing;
  }
  double host() const {
    return host_;
  }
  bool reached(double time) const {
    return !on() || time <= host_;
  }

  // The calling thread issues an operation, which the device cannot begin earlier than now. Returns
  // that time.
  double issue(double seconds);
  // The calling thread waits until this time.
  void wait(double until);
  // A copy that can begin when its stream is ready. Copies in the same direction follow each other.
  // Returns when it ends.
  double copy(int device, Way way, size_t bytes, double ready);

  // What a call takes that the device's memory is managed with.
  static constexpr double kMapping = 100e-6; // seconds, for the 20 MiB that PyTorch maps at once
  static constexpr double kCall = 1e-6; // of an operation that is queued
  // Reads and writes of a copy within the device, at 80 % of the peak of an H200.
  static constexpr double kWithin = 0.8 * 4.8e12 / 2; // bytes per second

 private:
  const Options& options_;
  double host_ = 0;
  double engines_[kMaxDevices][2] = {}; // when each direction is free again
};

} // namespace simcuda
