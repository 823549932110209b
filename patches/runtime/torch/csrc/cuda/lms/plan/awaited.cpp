#include <torch/csrc/cuda/lms/plan/awaited.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

// How long operators have stood still by then, from the beginning of an iteration on, which
// repeats.
class Stalls {
 public:
  explicit Stalls(const Prediction& prediction) : prediction_(prediction) {
    for (const double stall : prediction.stalls) {
      before_.push_back(sum_);
      sum_ += stall;
    }
  }

  double by(double seconds) const {
    const double laps = std::floor(seconds / prediction_.seconds);
    return laps * sum_ + within(seconds - laps * prediction_.seconds);
  }

 private:
  double within(double seconds) const {
    const std::vector<double>& starts = prediction_.starts;
    const auto next = std::upper_bound(starts.begin(), starts.end(), seconds);
    if (next == starts.end()) {
      return sum_;
    }
    const auto k = static_cast<size_t>(next - starts.begin());
    const double stall = prediction_.stalls[k];
    return before_[k] + std::max(0.0, seconds - (*next - stall));
  }

  const Prediction& prediction_;
  std::vector<double> before_; // each operator's own stall
  double sum_ = 0;
};

} // namespace

void find_awaited(Plan& plan) {
  constexpr double kMost = 0.5; // of a copy
  const Stalls stalls(plan.prediction);
  std::set<std::pair<uint32_t, Place>> awaited; // copies, by block and place
  for (const Movement& copy : plan.prediction.movements) {
    if (copy.kind == Movement::Kind::Out &&
        stalls.by(copy.end) - stalls.by(copy.begin) > kMost * (copy.end - copy.begin)) {
      awaited.insert({copy.block, copy.place});
    }
  }
  for (Move& move : plan.moves) {
    move.awaited = awaited.count({move.block, move.copy_after}) != 0;
  }
}

} // namespace torch::cuda::lms::plan
