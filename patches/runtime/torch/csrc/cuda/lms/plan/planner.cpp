#include <torch/csrc/cuda/lms/plan/planner.h>

#include <torch/csrc/cuda/lms/plan/bound.h>
#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/schedule.h>
#include <torch/csrc/cuda/lms/plan/selection.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

// Tries choices of gaps, and keeps the best.
class Planner {
 public:
  Planner(
      const Trace& trace,
      const Machine& machine,
      const Bound& bound,
      const std::vector<Gap>& gaps,
      const std::vector<int64_t>& living,
      const std::vector<int64_t>& needed)
      : trace_(trace),
        machine_(machine),
        bound_(bound),
        gaps_(gaps),
        living_(living),
        needed_(needed) {}

  Schedule run() {
    // What is being fetched needs memory beside what stays. Some choices therefore keep to less
    // than the limit, by this part of it, and leave the rest to transfers.
    int worse = 0;
    for (const int64_t part : {0, 512, 128, 48, 24, 12, 6}) {
      const int64_t room = machine_.limit - (part == 0 ? 0 : machine_.limit / part);
      const std::vector<int64_t> rooms(living_.size(), room);
      worse = consider(select(trace_, machine_, gaps_, living_, needed_, rooms)) ? 0 : worse + 1;
      if (good_enough() || (worse == 2 && !best_.moves.empty())) {
        break; // no other choice is likely to be better
      }
    }
    toggle();
    return std::move(best_);
  }

 private:
  // Time counts, and a fifth of the share of transfers beyond those that have to be.
  double score(const Prediction& prediction) const {
    constexpr double kTransfers = 0.2;
    const double least = link_seconds(bound_.bytes_out, bound_.bytes_in);
    const double most = link_seconds(prediction.bytes_out, prediction.bytes_in);
    const double beyond = least > 0 ? std::max(0.0, most / least - 1) : 0;
    return prediction.seconds * (1 + kTransfers * beyond);
  }

  // The bound is that of copies of all bytes. With compression, nothing but compute is certain.
  double least_seconds() const {
    const bool compressed = std::any_of(
        trace_.blocks.begin(), trace_.blocks.end(), [](const Block& b) { return b.share < 1; });
    return compressed ? trace_.seconds() : bound_.seconds;
  }

  // Whether no other choice can be much better.
  bool good_enough() const {
    return !best_.moves.empty() && best_score_ <= least_seconds() * 1.005;
  }

  double link_seconds(int64_t out, int64_t in) const {
    return static_cast<double>(out) / machine_.out_rate +
           static_cast<double>(in) / machine_.in_rate;
  }

  bool consider(const std::vector<bool>& chosen) {
    Schedule found = early_schedule(trace_, machine_, gaps_, chosen, living_);
    if (!found.replay.valid() ||
        (!best_.moves.empty() && score(found.replay.prediction) >= best_score_ * (1 - 1e-9))) {
      return false;
    }
    best_score_ = score(found.replay.prediction);
    best_ = std::move(found);
    chosen_ = chosen;
    return true;
  }

  // Each gap the other way, alone and with each other one, the largest first. In a short trace one
  // block can be a large part of all bytes, and there is time to try.
  void toggle() {
    constexpr size_t kEvents = 80000; // all that are scheduled; some 20 ms
    size_t left = kEvents / (trace_.events() + gaps_.size()); // schedules
    if (best_.moves.empty() || left < gaps_.size()) {
      return; // too few to be likely to find anything
    }
    std::vector<size_t> order(gaps_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return gaps_[a].bytes > gaps_[b].bytes;
    });
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t last = 0; last < order.size(); ++last) {
        for (size_t first = last + 1; first-- > 0;) {
          if (good_enough() || left-- == 0) {
            return;
          }
          std::vector<bool> other = chosen_;
          other[order[first]].flip();
          if (first != last) {
            other[order[last]].flip();
          }
          changed = consider(other) || changed;
        }
      }
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const Bound& bound_;
  const std::vector<Gap>& gaps_;
  const std::vector<int64_t>& living_;
  const std::vector<int64_t>& needed_;
  Schedule best_;
  double best_score_ = 0; // seconds
  std::vector<bool> chosen_; // for the best
};

} // namespace

Plan plan(const Trace& trace, const Machine& machine) {
  Plan result;
  result.problem = trace.problem();
  if (result.problem.empty()) {
    result.problem = machine.problem();
  }
  if (!result.problem.empty()) {
    return result;
  }
  const std::vector<Gap> gaps = gaps_of(trace);
  const std::vector<int64_t> alive = living(trace);
  const std::vector<int64_t> least = needed(trace);
  result.bound = bound_of(trace, machine, gaps, alive);
  for (Place place = 0; place < trace.size(); ++place) {
    if (least[place] > machine.limit &&
        (result.infeasible == Move::kNone || least[place] > result.infeasible_bytes)) {
      result.infeasible = place;
      result.infeasible_bytes = least[place];
    }
  }
  if (result.infeasible != Move::kNone) {
    const std::string& name = trace.operators[result.infeasible].name;
    result.problem = "operator " + std::to_string(result.infeasible) +
                     (name.empty() ? "" : " (" + name + ")") + " alone needs " +
                     std::to_string(result.infeasible_bytes) + " bytes, and the limit is " +
                     std::to_string(machine.limit);
    return result;
  }
  if (result.bound.excess_bytes == 0) {
    result.fits = true;
    result.prediction = replay(trace, machine, {}).prediction;
    return result;
  }

  Schedule best = Planner(trace, machine, result.bound, gaps, alive, least).run();
  if (best.moves.empty()) {
    result.problem = "no plan keeps the limit";
    return result;
  }
  result.moves = late_schedule(trace, machine, best).moves;
  // The order decides which of several copies after one operator is the first.
  std::stable_sort(result.moves.begin(), result.moves.end(), [](const Move& a, const Move& b) {
    return std::make_pair(a.copy_after, a.urgency()) < std::make_pair(b.copy_after, b.urgency());
  });
  const Replay played = replay(trace, machine, result.moves);
  result.prediction = played.prediction;
  if (!played.valid()) {
    result.problem = "the plan has a fault: " + played.message;
    result.moves.clear();
  }
  return result;
}

Plan plan_with_compression(const Trace& trace, const Machine& machine) {
  constexpr double kWaits = 0.02; // of an iteration
  Trace copied = trace;
  bool shrinks = false;
  for (Block& block : copied.blocks) {
    shrinks = shrinks || block.share < 1;
    block.share = 1;
  }
  Plan plain = plan(copied, machine);
  const Prediction& prediction = plain.prediction;
  const bool waits =
      !plain.problem.empty() || prediction.stall_seconds > kWaits * prediction.seconds;
  if (waits && shrinks) {
    return plan(trace, machine);
  }
  plain.compressed = waits; // as far as blocks turn out to shrink
  return plain;
}

} // namespace torch::cuda::lms::plan
