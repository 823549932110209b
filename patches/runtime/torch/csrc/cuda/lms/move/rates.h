#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

namespace torch::cuda::lms {

// How fast the transfers were that were measured last.
class Rates {
 public:
  void add(size_t bytes, double seconds) {
    rates_.push_back({static_cast<double>(bytes) / seconds, bytes});
    if (rates_.size() > kRates) {
      rates_.pop_front();
    }
  }

  bool empty() const {
    return rates_.empty();
  }

  // In bytes per second; 0 if there was none. At least half of the bytes went at least as fast. So
  // small transfers count little, which take longer for what they move.
  double median() const {
    std::vector<Rate> rates(rates_.begin(), rates_.end());
    std::sort(
        rates.begin(), rates.end(), [](const Rate& a, const Rate& b) { return a.rate > b.rate; });
    size_t bytes = 0;
    for (const Rate& rate : rates) {
      bytes += rate.bytes;
    }
    size_t faster = 0;
    for (const Rate& rate : rates) {
      faster += rate.bytes;
      if (2 * faster >= bytes) {
        return rate.rate;
      }
    }
    return 0;
  }

 private:
  static constexpr size_t kRates = 63;

  struct Rate {
    double rate; // bytes per second
    size_t bytes;
  };

  std::deque<Rate> rates_; // the newest last
};

} // namespace torch::cuda::lms
