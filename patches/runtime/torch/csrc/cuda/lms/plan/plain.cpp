#include <torch/csrc/cuda/lms/plan/plain.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

class Plain {
 public:
  Plain(
      const Trace& trace,
      const Machine& machine,
      const std::vector<Move>& moves,
      const std::vector<Handover>& handovers)
      : packed_trace_(trace),
        trace_(trace),
        machine_(slower(machine)),
        moves_(moves),
        handovers_(handovers) {}

  // Halves of what is packed, by the time of their copies, as long as they are better packed.
  // Returns the trace with shares of 1 where blocks are copied as they are.
  Trace run() {
    constexpr size_t kEvents = 400'000; // that are played; some 100 ms
    size_t left = kEvents / ((trace_.events() + moves_.size()) * kPlayed); // replays
    find();
    least_ = cost();
    using Range = std::pair<size_t, size_t>; // of packed_
    std::deque<Range> ranges{{0, packed_.size()}};
    for (; !ranges.empty() && left > 0; --left) {
      const auto [begin, end] = ranges.front();
      ranges.pop_front();
      if (begin == end || plainly(begin, end) || end - begin == 1) {
        continue;
      }
      const size_t middle = begin + (end - begin) / 2;
      ranges.emplace_back(begin, middle);
      ranges.emplace_back(middle, end);
    }
    return std::move(trace_);
  }

 private:
  static constexpr int kPlayed = 4; // iterations of a replay that only compares

  // Rates vary from one iteration to the next, and the plan has to be as good then.
  static Machine slower(Machine machine) {
    constexpr double kReserve = 0.07;
    machine.out_rate *= 1 - kReserve;
    machine.in_rate *= 1 - kReserve;
    return machine;
  }

  // The blocks that move and shrink, in the order of their first copies.
  void find() {
    std::vector<bool> found(trace_.blocks.size(), false);
    for (const Move& move : moves_) {
      if (trace_.blocks[move.block].share < 1 && !found[move.block]) {
        found[move.block] = true;
        packed_.push_back(move.block);
      }
    }
  }

  // Seconds of an iteration, and what packing takes from the operators. That is 16 to 32 of an
  // H200's 132 multiprocessors while it is under way (move/packing.cpp).
  double cost() const {
    constexpr double kTaken = 0.15;
    const Replay played = replay(trace_, machine_, moves_, kPlayed, handovers_);
    if (!played.valid()) {
      return std::numeric_limits<double>::infinity();
    }
    double packing = 0;
    for (const Move& move : moves_) {
      const Block& block = trace_.blocks[move.block];
      if (block.share < 1) {
        packing += move.copies ? machine_.out_seconds(block) : 0;
        packing += move.returns() ? machine_.in_seconds(block) : 0;
      }
    }
    return played.prediction.seconds + kTaken * packing;
  }

  // Copies some of the blocks as they are, if that costs less.
  bool plainly(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      trace_.blocks[packed_[i]].share = 1;
    }
    const double found = cost();
    if (found < least_) {
      least_ = found;
      return true;
    }
    for (size_t i = begin; i < end; ++i) {
      trace_.blocks[packed_[i]].share = packed_trace_.blocks[packed_[i]].share;
    }
    return false;
  }

  const Trace& packed_trace_; // with the shares of all that shrinks
  Trace trace_; // with those of what is packed
  const Machine machine_;
  const std::vector<Move>& moves_;
  const std::vector<Handover>& handovers_;
  std::vector<uint32_t> packed_; // blocks
  double least_ = 0; // seconds
};

} // namespace

void copy_plainly(
    const Trace& trace,
    const Machine& machine,
    Plan& plan,
    const std::vector<Handover>& handovers) {
  if (!plan.compressed || !plan.problem.empty()) {
    return;
  }
  const Trace found = Plain(trace, machine, plan.moves, handovers).run();
  Replay played = replay(found, machine, plan.moves, kIterations, handovers);
  if (!played.valid()) {
    return;
  }
  plan.prediction = std::move(played.prediction);
  for (Move& move : plan.moves) {
    move.packs = trace.blocks[move.block].share == found.blocks[move.block].share;
  }
}

} // namespace torch::cuda::lms::plan
