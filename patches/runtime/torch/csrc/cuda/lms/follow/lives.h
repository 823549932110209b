#pragma once

#include <torch/csrc/cuda/lms/plan/trace.h>
#include <torch/csrc/cuda/lms/record/trace.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch::cuda::lms {

// When the blocks of an iteration exist, to the event: an operator frees some of what it has
// allocated before it allocates the rest, which a plan::Trace does not tell. A time is an index of
// the recording.
class Lives {
 public:
  struct Life {
    int64_t bytes = 0;
    int64_t begin = 0;
    int64_t end = 0;
    bool from_before = false; // the iteration before had it
    bool goes_on = false; // so will the next one
  };

  Lives() = default;
  explicit Lives(const std::vector<TraceEvent>& recorded);

  // By number; the first is nobody's.
  const std::vector<Life>& of() const {
    return lives_;
  }
  // When the operator begins.
  int64_t begin(plan::Place place) const {
    return place < static_cast<plan::Place>(operators_.size())
               ? operators_[static_cast<size_t>(std::max<plan::Place>(place, 0))]
               : period_;
  }
  // The operator in which a time is.
  plan::Place at(int64_t time) const {
    const auto after = std::upper_bound(operators_.begin(), operators_.end(), time);
    return std::max<plan::Place>(0, (after - operators_.begin()) - 1);
  }
  plan::Place size() const {
    return static_cast<plan::Place>(operators_.size());
  }
  // Most bytes at the same time of blocks that have no place, see Places.
  int64_t without_place(const std::vector<bool>& stay) const;
  // Whether it has one: it is large, and its number is not among those that stay.
  bool placed(size_t number, const std::vector<bool>& stay) const {
    return lives_[number].bytes >= kLeast && !(number < stay.size() && stay[number]);
  }
  // Smaller blocks have no place: the native allocator has other memory for them.
  static constexpr int64_t kLeast = (int64_t(1) << 20) + 1; // bytes

  // What the iteration takes.
  int64_t period() const {
    return period_;
  }

 private:
  std::vector<Life> lives_;
  std::vector<int64_t> operators_; // when each begins
  int64_t period_ = 0;
};

} // namespace torch::cuda::lms
