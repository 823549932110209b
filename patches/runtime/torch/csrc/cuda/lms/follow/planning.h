#pragma once

#include <torch/csrc/cuda/lms/follow/places.h>
#include <torch/csrc/cuda/lms/plan/plan.h>
#include <torch/csrc/cuda/lms/plan/trace.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace torch::cuda::lms {

// Makes one plan at a time, in its own thread, which takes no lock. Used under the LMS mutex.
class Planning {
 public:
  Planning() = default;
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;
  ~Planning();

  // Whether a plan is being made, or was made and has not been taken.
  bool busy() const {
    return thread_.joinable();
  }
  // Whether the plan has to have places.
  bool places() const {
    return blocks_.has_value();
  }
  bool done() const {
    return busy() && done_.load(std::memory_order_acquire);
  }

  // Must not be called while it is busy.
  // With `compression`, blocks with a share are compressed only if the program would wait for
  // copies otherwise.
  // With `blocks`, they get places. If there are none for all that the plan has on the device at a
  // time, plans that use less than the machine's limit are made.
  struct Blocks {
    Lives lives;
    std::vector<uint32_t> links; // see Script
    std::vector<bool> stay; // by number: it has no place
    std::vector<Places::Rest> rest;
    int64_t most; // bytes that places may have
    int64_t memory; // bytes that PyTorch may take
    int64_t page; // bytes that it takes at a time; 1 if it takes what it is asked for
  };
  void start(
      plan::Trace trace,
      const plan::Machine& machine,
      bool compression,
      std::optional<Blocks> blocks);

  // Waits for the plan and returns it, with the places. Must only be called while it is busy.
  std::pair<plan::Plan, Places> take();

 private:
  plan::Plan plan() const;
  void make();
  int64_t without_place() const;
  int64_t room_beside(int64_t besides) const;
  bool find_places(int64_t room, const std::vector<double>& parts);

  std::thread thread_;
  std::atomic<bool> done_{false};
  bool compression_ = false; // these six belong to the thread until it is done
  plan::Trace trace_;
  plan::Machine machine_;
  std::optional<Blocks> blocks_;
  plan::Plan plan_;
  Places places_;
};

} // namespace torch::cuda::lms
