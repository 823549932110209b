#include <torch/csrc/cuda/lms/plan/schedule.h>

#include <torch/csrc/cuda/lms/plan/tree.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

constexpr int kShort = 3; // iterations of a replay that only compares

// The order in which blocks are needed, seen from the iteration that needs them.
struct Need {
  Place needed;
  Place shift; // from there to the iteration in which the move begins
  size_t move;
  bool operator<(const Need& other) const {
    return std::make_pair(needed, move) < std::make_pair(other.needed, other.move);
  }
};

std::vector<Need> needs_of(const std::vector<Move>& moves, Place size) {
  std::vector<Need> needs;
  for (size_t k = 0; k < moves.size(); ++k) {
    if (moves[k].returns()) {
      const Place shift = moves[k].needed_at >= size ? size : 0;
      needs.push_back({moves[k].needed_at - shift, shift, k});
    }
  }
  std::sort(needs.begin(), needs.end());
  return needs;
}

// The operators before which fetches have to be issued so that none is late, if the link were all
// that counts: from the last needed to the first, each ends before the next one has to begin, and
// `margin` seconds before it is needed. They may lie before the move's drop.
std::vector<Place> latest(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Move>& moves,
    const std::vector<Need>& needs,
    const Prediction& prediction,
    double margin) {
  const Place size = trace.size();
  std::vector<Place> places(moves.size(), Move::kNone);
  double next = std::numeric_limits<double>::infinity();
  // Twice: the last fetches of an iteration share the link with the first ones of the next.
  for (int lap = 0; lap < 2; ++lap) {
    for (size_t n = needs.size(); n-- > 0;) {
      const Move& move = moves[needs[n].move];
      const double end = std::min(next, prediction.starts[needs[n].needed]);
      next = end - machine.in_seconds(trace.blocks[move.block]);
      // The last operator that has started by then; in the iteration before, if it is negative.
      const double issue = next - margin;
      const double back = issue < 0 ? 1 : 0;
      if (issue + back * prediction.seconds < 0) {
        places[needs[n].move] = needs[n].shift - size;
        continue;
      }
      const auto after = std::upper_bound(
          prediction.starts.begin(), prediction.starts.end(), issue + back * prediction.seconds);
      places[needs[n].move] = (after - prediction.starts.begin()) - 1 -
                              static_cast<Place>(back) * size + needs[n].shift;
    }
    next += prediction.seconds;
  }
  return places;
}

class Scheduler {
 public:
  Scheduler(
      const Trace& trace,
      const Machine& machine,
      const std::vector<Gap>& gaps,
      const std::vector<bool>& chosen,
      const std::vector<int64_t>& living)
      : trace_(trace),
        machine_(machine),
        gaps_(gaps),
        all_(chosen),
        chosen_(chosen),
        size_(trace.size()),
        over_(living) {
    for (int64_t& bytes : over_) {
      bytes -= machine.limit;
    }
  }

  Schedule run() {
    constexpr int kRounds = 3;
    // First as if fetches took no time: when the copies to the host are done.
    Machine instant = machine_;
    instant.in_rate = std::numeric_limits<double>::infinity();
    instant.overhead = 0;
    collect();
    Replay before = replay(trace_, instant, moves_, kShort);
    Schedule best;
    for (int round = 0; round < kRounds; ++round) {
      issue(before);
      Replay result = replay(trace_, machine_, moves_, kShort);
      before = result;
      if (!result.valid()) {
        break;
      }
      const bool better =
          round == 0 || result.prediction.seconds < best.replay.prediction.seconds * (1 - 1e-4);
      if (better) {
        best.replay = std::move(result);
        best.moves = moves_;
      } else {
        break;
      }
    }
    if (best.moves.empty()) {
      // Memory is promised in another order than was expected: each fetch when it is needed.
      chosen_ = all_;
      collect();
      best.moves = moves_;
      best.replay = replay(trace_, machine_, moves_, kShort);
    }
    return best;
  }

 private:
  // A move for each chosen gap, with the drop as early and the fetch as late as can be.
  void collect() {
    const std::vector<bool> copied = copies(trace_, gaps_, chosen_);
    moves_.clear();
    gap_of_.clear();
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (!chosen_[k]) {
        continue;
      }
      const Gap& gap = gaps_[k];
      Move move;
      move.block = gap.block;
      move.copy_after = move.last_use = gap.begin < 0 ? Move::kNone : gap.begin;
      move.copies = copied[k];
      move.drop_before = gap.begin + 1;
      if (gap.returns()) {
        move.fetch_before = move.needed_at = gap.next;
      }
      moves_.push_back(move);
      gap_of_.push_back(k);
    }
    copy_early();
  }

  // Copies start when their block was written last, but in the order of the last uses: which of two
  // is needed first does not depend on when they were written.
  void copy_early() {
    std::vector<size_t> order;
    for (size_t k = 0; k < moves_.size(); ++k) {
      if (moves_[k].copies && moves_[k].last_use != Move::kNone) {
        order.push_back(k);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return moves_[a].urgency() < moves_[b].urgency();
    });
    Place last = 0;
    for (const size_t k : order) {
      // Writes of the iteration before are less than 0.
      last = std::max(last, gaps_[gap_of_[k]].written);
      moves_[k].copy_after = last;
    }
  }

  // Each fetch gets memory from when the link has to begin with it; only then are fetches issued
  // earlier, in the order of need, as far as there is memory still.
  void issue(const Replay& before) {
    const std::vector<Place>& freed = before.freed;
    Tree over(over_);
    bool needless = false;
    for (size_t k = 0; k < moves_.size(); ++k) {
      const Gap& gap = gaps_[gap_of_[k]];
      if (gap.begin < 0) {
        over.add(0, size_, -gap.bytes);
      } else if (freed[k] != Move::kNone && freed[k] < gap.end) {
        over.add(freed[k], gap.end, -gap.bytes);
      }
      moves_[k].fetch_before = moves_[k].needed_at;
    }
    const std::vector<Need> needs = needs_of(moves_, size_);
    const double seconds = before.prediction.seconds;
    for (const double margin : {0.0, 0.01 * seconds, 0.05 * seconds, seconds}) {
      const std::vector<Place> late =
          latest(trace_, machine_, moves_, needs, before.prediction, margin);
      Place last = std::numeric_limits<Place>::min();
      for (const Need& need : needs) {
        Move& move = moves_[need.move];
        const Gap& gap = gaps_[gap_of_[need.move]];
        const Place from = freed[need.move];
        if (from == Move::kNone || from >= gap.end) {
          continue; // its memory is not missed
        }
        const Place wanted = std::max({from, late[need.move], last + need.shift});
        if (wanted < move.fetch_before) {
          const Place fits = over.last_above(wanted, move.fetch_before, -gap.bytes) + 1;
          over.add(fits, move.fetch_before, gap.bytes);
          move.fetch_before = fits;
        }
        last = move.fetch_before - need.shift;
      }
    }
    for (const Need& need : needs) {
      const Place from = freed[need.move];
      if (from == Move::kNone || moves_[need.move].fetch_before <= from) {
        chosen_[gap_of_[need.move]] = false;
        needless = true;
      }
    }
    for (size_t k = 0; k < moves_.size(); ++k) {
      if (!moves_[k].returns() && moves_[k].copy_after != Move::kNone && freed[k] == Move::kNone) {
        chosen_[gap_of_[k]] = false;
        needless = true;
      }
    }
    if (needless) {
      const std::vector<Move> old = std::move(moves_);
      const std::vector<size_t> old_gaps = std::move(gap_of_);
      collect();
      for (size_t k = 0, n = 0; k < moves_.size(); ++k) {
        while (old_gaps[n] != gap_of_[k]) {
          ++n;
        }
        moves_[k].fetch_before = old[n].fetch_before;
      }
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap>& gaps_;
  const std::vector<bool>& all_;
  std::vector<bool> chosen_; // of them, those that turned out to be needed
  const Place size_;
  std::vector<int64_t> over_; // bytes above the limit at each operator, if nothing leaves
  std::vector<Move> moves_;
  std::vector<size_t> gap_of_; // of each move
};

// Drops where memory is first free for others, so that no fetch and no operator waits longer.
std::vector<Move> with_drops(const Schedule& schedule) {
  std::vector<Move> moves = schedule.moves;
  for (size_t k = 0; k < moves.size(); ++k) {
    const Place freed = schedule.replay.freed[k];
    if (freed != Move::kNone && moves[k].copy_after != Move::kNone) {
      moves[k].drop_before =
          moves[k].returns()
              ? std::min(std::max(moves[k].drop_before, freed), moves[k].fetch_before)
              : std::max(moves[k].drop_before, freed);
    }
  }
  return moves;
}

std::vector<Move> with_late_fetches(
    const Trace& trace,
    const Machine& machine,
    const Schedule& schedule,
    double margin) {
  std::vector<Move> moves = schedule.moves;
  const std::vector<Place> late = latest(
      trace,
      machine,
      moves,
      needs_of(moves, trace.size()),
      schedule.replay.prediction,
      margin * schedule.replay.prediction.seconds);
  for (size_t k = 0; k < moves.size(); ++k) {
    if (moves[k].returns()) {
      moves[k].fetch_before =
          std::min(moves[k].needed_at, std::max(moves[k].fetch_before, late[k]));
    }
  }
  return moves;
}

} // namespace

Schedule early_schedule(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<bool>& chosen,
    const std::vector<int64_t>& living) {
  return Scheduler(trace, machine, gaps, chosen, living).run();
}

Schedule late_schedule(const Trace& trace, const Machine& machine, const Schedule& early) {
  Schedule best = early;
  best.replay = replay(trace, machine, best.moves);
  const double allowed = best.replay.prediction.seconds * (1 + 1e-4);
  for (const double margin : {0.01, 0.05}) {
    Schedule late;
    late.moves = with_late_fetches(trace, machine, early, margin);
    late.replay = replay(trace, machine, late.moves);
    if (late.replay.valid() && late.replay.prediction.seconds <= allowed) {
      best = std::move(late);
      break;
    }
  }
  Schedule dropped;
  dropped.moves = with_drops(best);
  dropped.replay = replay(trace, machine, dropped.moves);
  if (dropped.replay.valid() && dropped.replay.prediction.seconds <= allowed) {
    best = std::move(dropped);
  }
  return best;
}

std::vector<Move> earlier_drops(std::vector<Move> moves, double part) {
  for (Move& move : moves) {
    const Place first = move.last_use + 1;
    if (move.last_use != Move::kNone && move.drop_before > first) {
      move.drop_before -= static_cast<Place>(part * static_cast<double>(move.drop_before - first));
    }
  }
  return moves;
}

} // namespace torch::cuda::lms::plan
