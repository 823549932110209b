#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace torch::cuda::lms::plan {

// Device memory: who takes some waits until enough of what was given up before is free. Requests
// come in the order of the program, and memory that one of them waits for is promised to it.
class Ledger {
 public:
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Ledger(int64_t limit, int64_t used) : limit_(limit), used_(used) {}

  // Gives bytes up at a time, in seconds. `who` is told when they are free.
  void release(double at, int64_t bytes, size_t who = kNobody) {
    releases_.push({at, {bytes, who}});
    coming_ += bytes;
  }

  // Counts what is free at a time.
  template <class F>
  void settle(double now, F freed) {
    while (!releases_.empty() && releases_.top().first <= now) {
      pop(freed);
    }
  }

  // When bytes can be had, from a time on; kNever if they cannot.
  template <class F>
  double take(double now, int64_t bytes, F freed) {
    settle(now, freed);
    while (used_ + bytes > limit_) {
      if (releases_.empty()) {
        return kNever;
      }
      const Release next = releases_.top();
      now = std::max(now, next.first);
      pop(freed);
      // What is left of it is for whoever waits as long.
      const int64_t left = limit_ - used_ - bytes;
      if (left > 0) {
        used_ += std::min(left, next.second.first);
        release(next.first, std::min(left, next.second.first));
      }
    }
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    return now;
  }

  int64_t used() const {
    return used_;
  }
  // Of `used`, what was given up and is not free yet.
  int64_t coming() const {
    return coming_;
  }
  int64_t peak() const {
    return peak_;
  }
  void forget_peak() {
    peak_ = used_;
  }

 private:
  using Release = std::pair<double, std::pair<int64_t, size_t>>; // at, (bytes, who)

  template <class F>
  void pop(F freed) {
    const auto [bytes, who] = releases_.top().second;
    releases_.pop();
    used_ -= bytes;
    coming_ -= bytes;
    if (who != kNobody) {
      freed(who);
    }
  }

  const int64_t limit_;
  int64_t used_;
  int64_t coming_ = 0;
  int64_t peak_ = 0;
  std::priority_queue<Release, std::vector<Release>, std::greater<Release>> releases_;
};

} // namespace torch::cuda::lms::plan
