#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace torch::cuda::lms::plan {

// Bytes per operator of a repeating iteration: adds to a range and finds the largest of a range,
// each in the logarithm of the number of operators. A range goes from `begin` to before `end`, and
// may reach over the iteration's end into the next one (end <= begin + size).
class Tree {
 public:
  static constexpr int64_t kLeast = std::numeric_limits<int64_t>::min() / 4;

  explicit Tree(const std::vector<int64_t>& values)
      : size_(static_cast<int64_t>(values.size())), width_(1) {
    while (width_ < size_) {
      width_ *= 2;
    }
    largest_.assign(2 * width_, kLeast);
    added_.assign(2 * width_, 0);
    std::copy(values.begin(), values.end(), largest_.begin() + width_);
    for (int64_t node = width_ - 1; node > 0; --node) {
      largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
    }
  }

  void add(int64_t begin, int64_t end, int64_t bytes) {
    parts(begin, end, [&](int64_t a, int64_t b) { add(1, 0, width_, a, b, bytes); });
  }

  // kLeast for an empty range.
  int64_t largest(int64_t begin, int64_t end) const {
    int64_t found = kLeast;
    parts(begin, end, [&](int64_t a, int64_t b) {
      found = std::max(found, largest(1, 0, width_, a, b));
    });
    return found;
  }

  // The last place of the range with more bytes than these, or begin - 1.
  int64_t last_above(int64_t begin, int64_t end, int64_t bytes) const {
    int64_t found = begin - 1;
    // The parts come in order, so a later one's answer replaces that of the one before.
    int64_t shift = begin - wrapped(begin);
    parts(begin, end, [&](int64_t a, int64_t b) {
      const int64_t last = last_above(1, 0, width_, a, b, bytes);
      if (last >= 0) {
        found = last + shift;
      }
      shift += size_;
    });
    return found;
  }

 private:
  int64_t wrapped(int64_t place) const {
    return ((place % size_) + size_) % size_;
  }

  template <class F>
  void parts(int64_t begin, int64_t end, F f) const {
    if (begin >= end) {
      return;
    }
    const int64_t first = wrapped(begin);
    const int64_t last = first + (end - begin);
    f(first, std::min(last, size_));
    if (last > size_) {
      f(0, last - size_);
    }
  }

  void add(int64_t node, int64_t low, int64_t high, int64_t a, int64_t b, int64_t bytes) {
    if (a <= low && high <= b) {
      largest_[node] += bytes;
      added_[node] += bytes;
      return;
    }
    const int64_t middle = (low + high) / 2;
    if (a < middle) {
      add(2 * node, low, middle, a, b, bytes);
    }
    if (b > middle) {
      add(2 * node + 1, middle, high, a, b, bytes);
    }
    largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]) + added_[node];
  }

  int64_t largest(int64_t node, int64_t low, int64_t high, int64_t a, int64_t b) const {
    if (a <= low && high <= b) {
      return largest_[node];
    }
    const int64_t middle = (low + high) / 2;
    int64_t found = kLeast;
    if (a < middle) {
      found = largest(2 * node, low, middle, a, b);
    }
    if (b > middle) {
      found = std::max(found, largest(2 * node + 1, middle, high, a, b));
    }
    return found + added_[node];
  }

  int64_t last_above(int64_t node, int64_t low, int64_t high, int64_t a, int64_t b, int64_t bytes)
      const {
    if (b <= low || high <= a || largest_[node] <= bytes) {
      return -1;
    }
    if (high - low == 1) {
      return low;
    }
    const int64_t middle = (low + high) / 2;
    bytes -= added_[node];
    const int64_t found = last_above(2 * node + 1, middle, high, a, b, bytes);
    return found >= 0 ? found : last_above(2 * node, low, middle, a, b, bytes);
  }

  int64_t size_; // operators
  int64_t width_; // leaves: the next power of two
  std::vector<int64_t> largest_; // of the leaves below, with what was added below and here
  std::vector<int64_t> added_; // to all leaves below
};

} // namespace torch::cuda::lms::plan
