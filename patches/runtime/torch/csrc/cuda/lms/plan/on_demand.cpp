#include <torch/csrc/cuda/lms/plan/on_demand.h>

#include <torch/csrc/cuda/lms/plan/gap.h>
#include <torch/csrc/cuda/lms/plan/ledger.h>
#include <torch/csrc/cuda/lms/plan/link.h>
#include <torch/csrc/cuda/lms/plan/steady.h>

#include <algorithm>
#include <list>

namespace torch::cuda::lms::plan {
namespace {

class Reaction {
 public:
  Reaction(const Trace& trace, const Machine& machine)
      : trace_(trace),
        machine_(machine),
        states_(trace.blocks.size()),
        born_(trace.operators.size()),
        dying_(trace.operators.size()),
        ledger_(limit(), trace.unmanaged) {
    for (uint32_t i = 0; i < trace.blocks.size(); ++i) {
      const Block& block = trace.blocks[i];
      states_[i].place = idle_.end();
      if (!block.persistent()) {
        born_[block.allocated].push_back(i);
        dying_[block.freed].push_back(i);
      } else {
        states_[i].true_copy = true;
      }
    }
  }

  Prediction run(int iterations) {
    play_until_steady(trace_.size(), iterations, end_, ledger_, prediction_, [&](Place place) {
      play(place);
      return true;
    });
    return std::move(prediction_);
  }

 private:
  struct State {
    bool present = false;
    bool true_copy = false; // on the host
    double arrived = 0; // seconds
    double copied = 0; // seconds
    std::list<uint32_t>::iterator place; // in idle_, or its end
  };

  int64_t limit() const {
    int64_t bytes = machine_.limit;
    for (const int64_t operator_needs : needed(trace_)) {
      bytes = std::max(bytes, operator_needs);
    }
    return bytes;
  }

  void pin(uint32_t block) {
    State& state = states_[block];
    if (state.place != idle_.end()) {
      idle_.erase(state.place);
      state.place = idle_.end();
    }
  }

  void unpin(uint32_t block) {
    pin(block);
    states_[block].place = idle_.insert(idle_.end(), block);
  }

  void moved(Movement::Kind kind, uint32_t block, double end, double seconds) {
    prediction_.movements.push_back({kind, block, place_, end - seconds, end});
  }

  double room(int64_t bytes) {
    while (ledger_.used() - ledger_.coming() + bytes > limit_ && !idle_.empty()) {
      const uint32_t victim = idle_.front();
      pin(victim);
      State& state = states_[victim];
      if (!state.true_copy) {
        const int64_t bytes_out = trace_.blocks[victim].bytes;
        const double seconds = machine_.out_seconds(trace_.blocks[victim]);
        state.copied = out_.transfer(std::max(end_, state.arrived), seconds);
        state.true_copy = true;
        prediction_.bytes_out += bytes_out;
        moved(Movement::Kind::Out, victim, state.copied, seconds);
      }
      state.present = false;
      const double free = std::max({end_, state.arrived, state.copied});
      ledger_.release(free, trace_.blocks[victim].bytes);
      moved(Movement::Kind::Drop, victim, free, 0);
    }
    return ledger_.take(end_, bytes, [](size_t) {});
  }

  void play(Place place) {
    place_ = place;
    const Operator& op = trace_.operators[place];
    for (const Access access : op.accesses) {
      pin(access.block);
    }
    double arrived = 0;
    for (const Access access : op.accesses) {
      State& state = states_[access.block];
      const Block& block = trace_.blocks[access.block];
      if (!state.present && (block.persistent() || block.allocated != place)) {
        const double from = std::max(room(block.bytes), state.copied);
        const double seconds = machine_.in_seconds(block);
        state.arrived = in_.transfer(from, seconds);
        moved(Movement::Kind::In, access.block, state.arrived, seconds);
        state.present = true;
        prediction_.bytes_in += block.bytes;
      }
      arrived = std::max(arrived, state.arrived);
    }
    int64_t bytes = 0;
    for (const uint32_t i : born_[place]) {
      bytes += trace_.blocks[i].bytes;
      states_[i] = State{true, false, 0, 0, idle_.end()};
    }
    const double memory = room(bytes);
    const double start = std::max({end_, memory, arrived});
    prediction_.starts[place] = start;
    prediction_.stalls[place] = start - end_;
    prediction_.stall_seconds += start - end_;
    prediction_.causes[place] = start == end_       ? Cause::None
                                : arrived >= memory ? Cause::Arrival
                                                    : Cause::Memory;
    prediction_.curve[place] = ledger_.used();
    end_ = start + op.seconds;
    for (const Access access : op.accesses) {
      states_[access.block].true_copy &= !access.writes;
      unpin(access.block);
    }
    for (const uint32_t i : born_[place]) {
      unpin(i);
    }
    for (const uint32_t i : dying_[place]) {
      pin(i);
      if (states_[i].present) {
        states_[i].present = false;
        ledger_.release(std::max(end_, states_[i].arrived), trace_.blocks[i].bytes);
      }
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const int64_t limit_ = limit();
  std::vector<State> states_;
  std::vector<std::vector<uint32_t>> born_;
  std::vector<std::vector<uint32_t>> dying_;
  std::list<uint32_t> idle_; // the least recently used first
  Ledger ledger_;
  Link out_;
  Link in_;
  Prediction prediction_;
  Place place_ = 0; // of the operator that is played
  double end_ = 0; // of the operator before, seconds
};

} // namespace

Prediction on_demand(const Trace& trace, const Machine& machine, int iterations) {
  return Reaction(trace, machine).run(iterations);
}

} // namespace torch::cuda::lms::plan
