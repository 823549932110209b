#include <torch/csrc/cuda/lms/plan/planner.h>

#include <torch/csrc/cuda/lms/plan/bound.h>
#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/replay.h>
#include <torch/csrc/cuda/lms/plan/schedule.h>
#include <torch/csrc/cuda/lms/plan/selection.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
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
      // No other choice can be much better, or is likely to be better at all.
      const bool found = !best_.moves.empty();
      if (found && (worse == 2 || good())) {
        break;
      }
    }
    consider_patient();
    toggle_large();
    toggle_pairs();
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

  // Whether no other choice can be much better.
  bool good() const {
    return best_score_ <= least_seconds() * 1.005;
  }

  // Whether the choice of a gap can matter by itself.
  bool large(const Gap& gap) const {
    constexpr int64_t kSmall = 100; // part of the excess
    return gap.bytes >= bound_.excess_bytes / kSmall;
  }

  // The bound is that of copies of all bytes. With compression, nothing but compute is certain.
  double least_seconds() const {
    const bool compressed = std::any_of(
        trace_.blocks.begin(), trace_.blocks.end(), [](const Block& b) { return b.share < 1; });
    return compressed ? trace_.seconds() : bound_.seconds;
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

  // The selection counts bytes. So here it gets only the gaps that are long enough for their own
  // transfers: the others make the program wait even where the link has nothing else to do.
  void consider_patient() {
    if (!best_.moves.empty() && good()) {
      return;
    }
    std::vector<double> starts(1, 0); // of the operators of two iterations
    for (int round = 0; round < 2; ++round) {
      for (const Operator& op : trace_.operators) {
        starts.push_back(starts.back() + op.seconds);
      }
    }
    std::vector<Gap> patient;
    std::vector<size_t> places;
    bool matters = false;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      const Gap& gap = gaps_[k];
      const Block& block = trace_.blocks[gap.block];
      const double seconds = (gap.written == Gap::kNever ? 0 : machine_.out_seconds(block)) +
                             (gap.returns() ? machine_.in_seconds(block) : 0);
      if (starts[gap.end] - starts[gap.begin + 1] >= seconds) {
        patient.push_back(gap);
        places.push_back(k);
      } else {
        matters = matters || large(gap);
      }
    }
    if (!matters) {
      return;
    }
    for (const int64_t part : {0, 48, 12}) {
      const int64_t room = machine_.limit - (part == 0 ? 0 : machine_.limit / part);
      const std::vector<int64_t> rooms(living_.size(), room);
      const std::vector<bool> found = select(trace_, machine_, patient, living_, needed_, rooms);
      std::vector<bool> chosen(gaps_.size(), false);
      for (size_t k = 0; k < places.size(); ++k) {
        chosen[places[k]] = found[k];
      }
      consider(chosen);
    }
  }

  // Considers the best choice with these gaps the other way; `operators` is how many may still be
  // scheduled for that. Returns whether it was better.
  bool toggle(std::initializer_list<size_t> gaps, size_t& operators) {
    if (operators < trace_.operators.size()) {
      operators = 0;
      return false;
    }
    operators -= trace_.operators.size();
    std::vector<bool> other = chosen_;
    for (const size_t gap : gaps) {
      other[gap] = !other[gap];
    }
    return consider(other);
  }

  // Each large gap the other way, and each chosen one in exchange for another one: the largest
  // first, for then those of equal size come together. The selection counts bytes, so it cannot
  // tell which of them has the time that its transfers need. Small gaps make no difference.
  void toggle_large() {
    constexpr size_t kOperators = 20000;
    size_t left = best_.moves.empty() || good() ? 0 : kOperators;
    std::vector<size_t> order;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (large(gaps_[k])) {
        order.push_back(k);
      }
    }
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return gaps_[a].bytes > gaps_[b].bytes;
    });
    for (bool changed = true; changed && left > 0;) {
      changed = false;
      for (const size_t gap : order) {
        changed = toggle({gap}, left) || changed;
      }
      for (size_t k = 0; k < order.size(); ++k) {
        for (size_t n = k + 1; n < order.size(); ++n) {
          if (chosen_[order[k]] != chosen_[order[n]]) {
            changed = toggle({order[k], order[n]}, left) || changed;
          }
        }
      }
    }
  }

  // Each pair of gaps. In a short trace there is time to try.
  void toggle_pairs() {
    constexpr size_t kOperators = 3000;
    constexpr Place kShort = 100; // operators
    size_t left = best_.moves.empty() || trace_.size() > kShort ? 0 : kOperators;
    for (bool changed = true; changed && left > 0;) {
      changed = false;
      for (size_t k = 0; k < gaps_.size(); ++k) {
        for (size_t n = k + 1; n < gaps_.size(); ++n) {
          changed = toggle({k, n}, left) || changed;
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
    return a.copy_after < b.copy_after;
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
