#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

namespace torch::cuda::lms {

// How fast the transfers were that were measured last.
class Rates {
 public:
  // Smaller transfers say little about how fast larger ones are.
  static constexpr size_t kLarge = size_t(1) << 20; // bytes

  void add(size_t bytes, double seconds) {
    std::deque<Rate>& alike = rates_[size_class(bytes)];
    alike.push_back({static_cast<double>(bytes) / seconds, bytes});
    if (alike.size() > kRates) {
      alike.pop_front();
    }
  }

  bool empty() const {
    return rates_.empty();
  }

  // In bytes per second; 0 if there was none. At least half of the bytes went at least as fast. So
  // small transfers count little, which take longer for what they move.
  double median() const {
    std::vector<Rate> rates;
    for (const auto& alike : rates_) {
      rates.insert(rates.end(), alike.second.begin(), alike.second.end());
    }
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

  // The median; 0 if none was large.
  double known() const {
    return large() ? median() : 0;
  }

  // The median, but if none was large, that of transfers which move bytes in another way, if it is
  // higher.
  double median_or(const Rates& other) const {
    return large() ? median() : std::max(median(), other.median());
  }

 private:
  // Of transfers of about as many bytes. Many small ones, as when blocks are compressed but a few,
  // do not make forget how fast large ones are.
  static constexpr size_t kRates = 31;

  struct Rate {
    double rate; // bytes per second
    size_t bytes;
  };

  static int size_class(size_t bytes) {
    return std::ilogb(static_cast<double>(bytes));
  }

  bool large() const {
    return rates_.lower_bound(size_class(kLarge)) != rates_.end();
  }

  std::map<int, std::deque<Rate>> rates_; // by the size class; the newest last
};

} // namespace torch::cuda::lms
