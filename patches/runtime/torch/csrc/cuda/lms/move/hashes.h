#pragma once

#include <torch/csrc/cuda/lms/kernel/checker.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <c10/core/Device.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace torch::cuda::lms {

// The hashes of one device's blocks, and what their checks have found. Used under the LMS mutex,
// with the device current.
class Hashes {
 public:
  explicit Hashes(c10::DeviceIndex device) : checker_(device) {}
  Hashes(const Hashes&) = delete;
  Hashes& operator=(const Hashes&) = delete;

  Checker& checker() {
    return checker_;
  }
  const Checker& checker() const {
    return checker_;
  }

  // Null if the device is full.
  std::optional<Checker::Slot> take();

  // The block of this hash leaves the device; this operator used it last.
  void leaves(Checker::Slot hash, const char* user) {
    users_[hash] = user;
  }

  // No block needs the hash any more, but kernels may use it until the event is complete. collect()
  // gives up some of those that no kernel uses.
  void retire(Checker::Slot hash, EventRef touched);
  void collect() {
    give_up(std::max(kFew, retired_.size() / 16));
  }

  // Warns, once, if an unseen write was found. Throws c10::Error if compressed bytes came back as
  // other ones.
  void report();

  // How many unseen writes were found since reset().
  int64_t caught() {
    return static_cast<int64_t>(checker_.caught() - forgotten_);
  }
  void reset() {
    forgotten_ = checker_.caught();
  }

 private:
  struct Retired {
    Checker::Slot hash;
    EventRef touched;
  };

  // At most so many of those that no kernel uses.
  void give_up(size_t most);

  // collect() gives up so many, or more if there are many. Each asks about an event, which takes
  // the host microseconds. When an iteration begins, all events of the one before are complete, and
  // the device has nothing to do meanwhile.
  static constexpr size_t kFew = 2;

  Checker checker_;
  std::deque<Retired> retired_;
  std::map<Checker::Slot, const char*> users_;
  uint64_t reported_ = 0; // unseen writes at the time of the last warning
  uint64_t forgotten_ = 0;
};

} // namespace torch::cuda::lms
