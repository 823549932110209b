#include <torch/csrc/cuda/lms/plan/replay.h>

#include <torch/csrc/cuda/lms/plan/ledger.h>
#include <torch/csrc/cuda/lms/plan/link.h>
#include <torch/csrc/cuda/lms/plan/steady.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

// What is to do at each place of an iteration.
class Agenda {
 public:
  // A place, the order there, and what is to do.
  using Order = std::pair<Place, Place>;
  using Entries = std::vector<std::tuple<Place, Order, size_t>>;

  Agenda(Place size, Entries entries) : first_(size + 1, entries.size()), what_(entries.size()) {
    std::sort(entries.begin(), entries.end());
    for (size_t k = entries.size(); k-- > 0;) {
      what_[k] = std::get<2>(entries[k]);
      first_[std::get<0>(entries[k])] = k;
    }
    for (Place i = size; i-- > 0;) {
      first_[i] = std::min(first_[i], first_[i + 1]);
    }
  }

  const size_t* begin(Place place) const {
    return what_.data() + first_[place];
  }
  const size_t* end(Place place) const {
    return what_.data() + first_[place + 1];
  }

 private:
  std::vector<size_t> first_;
  std::vector<size_t> what_;
};

template <class F>
void each(const Agenda& agenda, Place place, F f) {
  for (const size_t* what = agenda.begin(place); what != agenda.end(place); ++what) {
    f(*what);
  }
}

class Player {
 public:
  Player(
      const Trace& trace,
      const Machine& machine,
      const std::vector<Move>& moves,
      const std::vector<Handover>& handovers)
      : trace_(trace),
        machine_(machine),
        moves_(moves),
        handovers_(handovers),
        size_(trace.size()),
        copies_(
            size_,
            agenda(
                [](const Move& move) { return move.copy_after; },
                [](const Move& move, Place) { return move.urgency(); })),
        drops_(size_, agenda([](const Move& move) { return move.drop_before; }, soonest)),
        fetches_(size_, agenda([](const Move& move) { return move.fetch_before; }, soonest)),
        births_(size_, lives([](const Block& block) { return block.allocated; })),
        deaths_(size_, lives([](const Block& block) { return block.freed; })),
        inherits_(size_, inheritors([](const Handover& handover) {
                    return handover.to == Handover::kNobody ? handover.place : Move::kNone;
                  })),
        fetches_into_(static_cast<Place>(moves.size()), inheritors([](const Handover& handover) {
                        return handover.to == Handover::kNobody ? Move::kNone
                                                                : static_cast<Place>(handover.to);
                      })),
        free_(moves.size()),
        blocks_(trace.blocks.size()),
        ledger_(machine.limit, begin()) {}

  Replay run(int iterations) {
    result_.freed.assign(moves_.size(), Move::kNone);
    if (size_ == 0) {
      return std::move(result_);
    }
    const int most = result_.valid() ? iterations : 0;
    play_until_steady(size_, most, end_, ledger_, result_.prediction, [&](Place place) {
      play(place);
      return result_.valid();
    });
    return std::move(result_);
  }

 private:
  struct State {
    bool present = false;
    bool true_copy = true; // on the host
    double arrived = 0; // seconds
    double copied = 0; // seconds
  };

  static bool idle(const Move& move) {
    return move.copy_after == Move::kNone;
  }

  // What is needed first, seen from a place.
  static Agenda::Order soonest(const Move& move, Place at) {
    return {move.needed_at - at, 0};
  }

  template <class F, class Order>
  Agenda::Entries agenda(F place, Order order) const {
    Agenda::Entries entries;
    for (size_t k = 0; k < moves_.size(); ++k) {
      const Place at = place(moves_[k]);
      if (at >= 0 && !idle(moves_[k]) && size_ > 0) {
        entries.emplace_back(at % size_, order(moves_[k], at), k);
      }
    }
    return entries;
  }

  template <class F>
  Agenda::Entries lives(F place) const {
    Agenda::Entries entries;
    for (size_t i = 0; i < trace_.blocks.size(); ++i) {
      if (!trace_.blocks[i].persistent()) {
        entries.emplace_back(place(trace_.blocks[i]), Agenda::Order(), i);
      }
    }
    return entries;
  }

  template <class F>
  Agenda::Entries inheritors(F who) const {
    Agenda::Entries entries;
    for (size_t k = 0; k < handovers_.size(); ++k) {
      if (who(handovers_[k]) >= 0) {
        entries.emplace_back(who(handovers_[k]), Agenda::Order(), k);
      }
    }
    return entries;
  }

  // What is there when an iteration begins; its bytes.
  int64_t begin() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].present = trace_.blocks[i].persistent();
    }
    for (const Move& move : moves_) {
      if (!sound(move)) {
        fail(Fault::Malformed, std::max<Place>(0, move.copy_after), move.block, "is malformed");
        continue;
      }
      const bool away = move.drop_before < size_ && move.fetch_before >= size_;
      if (idle(move) || (move.returns() && away)) {
        blocks_[move.block].present = false;
      }
    }
    int64_t bytes = trace_.unmanaged;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      bytes += blocks_[i].present ? trace_.blocks[i].bytes : 0;
    }
    return bytes;
  }

  bool sound(const Move& move) const {
    if (move.block >= trace_.blocks.size()) {
      return false;
    }
    if (idle(move)) {
      return trace_.blocks[move.block].persistent() && !move.copies && !move.returns();
    }
    if (move.copy_after < 0 || move.copy_after > move.last_use || move.last_use >= size_ ||
        move.drop_before < 0 || move.drop_before > move.last_use + size_) {
      return false;
    }
    return !move.returns() ||
           (move.fetch_before >= move.drop_before && move.fetch_before <= move.needed_at &&
            move.needed_at <= move.last_use + size_);
  }

  void fail(Fault fault, Place place, uint32_t block, const std::string& what) {
    if (result_.valid()) {
      result_.fault = fault;
      result_.place = place;
      result_.message =
          "operator " + std::to_string(place) + ": block " + std::to_string(block) + " " + what;
    }
  }

  double take(Place place, double now, int64_t bytes) {
    return ledger_.take(now, bytes, [&](size_t k) { freed(k, place); });
  }

  void freed(size_t k, Place place) {
    const Move& move = moves_[k];
    result_.freed[k] = place > move.last_use ? place : place + size_;
  }

  void play(Place place) {
    const Operator& op = trace_.operators[place];
    const double ready = end_;
    each(drops_, place, [&](size_t k) { drop(place, k); });
    each(fetches_, place, [&](size_t k) { fetch(place, k); });

    int64_t born = 0;
    each(births_, place, [&](size_t i) {
      born += trace_.blocks[i].bytes;
      blocks_[i] = State{true, false, 0, 0};
    });
    const double room = std::max(take(place, ready, born), inherited(inherits_, place));
    if (room == Ledger::kNever && result_.valid()) {
      result_.fault = Fault::Limit;
      result_.place = place;
      result_.message = "operator " + std::to_string(place) + " needs " +
                        std::to_string(ledger_.used() + born - machine_.limit) +
                        " bytes more than the limit";
    }
    double arrived = 0;
    for (const Access access : op.accesses) {
      State& state = blocks_[access.block];
      if (!state.present) {
        fail(Fault::Absent, place, access.block, "is used, and is not on the device");
      }
      arrived = std::max(arrived, state.arrived);
      state.true_copy = state.true_copy && !access.writes;
    }
    if (!result_.valid()) {
      return;
    }

    Prediction& now = result_.prediction;
    const double start = std::max({ready, room, arrived});
    ledger_.settle(start, [&](size_t k) { freed(k, place); });
    now.starts[place] = start;
    now.stalls[place] = start - ready;
    now.stall_seconds += start - ready;
    now.causes[place] = start == ready    ? Cause::None
                        : arrived >= room ? Cause::Arrival
                                          : Cause::Memory;
    now.curve[place] = ledger_.used();
    end_ = start + op.seconds;

    each(copies_, place, [&](size_t k) { copy(place, k); });
    each(deaths_, place, [&](size_t i) {
      if (blocks_[i].present) {
        ledger_.release(std::max(end_, blocks_[i].copied), trace_.blocks[i].bytes);
        blocks_[i].present = false;
      }
    });
  }

  void copy(Place place, size_t k) {
    const Move& move = moves_[k];
    State& state = blocks_[move.block];
    if (!move.copies) {
      return;
    }
    if (!state.present) {
      fail(Fault::Absent, place, move.block, "is copied, and is not on the device");
      return;
    }
    const int64_t bytes = trace_.blocks[move.block].bytes;
    const double seconds = machine_.out_seconds(trace_.blocks[move.block]);
    state.copied = out_.transfer(end_, seconds);
    moved(Movement::Kind::Out, place, move.block, state.copied, seconds);
    state.true_copy = true;
    result_.prediction.bytes_out += bytes;
  }

  void drop(Place place, size_t k) {
    const Move& move = moves_[k];
    State& state = blocks_[move.block];
    if (!state.present) {
      fail(Fault::Absent, place, move.block, "is dropped, and is not on the device");
    } else if (!state.true_copy) {
      fail(Fault::Untrue, place, move.block, "is dropped, and the host has no true copy");
    }
    state.present = false;
    free_[k] = std::max(end_, state.copied);
    ledger_.release(free_[k], trace_.blocks[move.block].bytes, k);
    moved(Movement::Kind::Drop, place, move.block, free_[k], 0);
  }

  void fetch(Place place, size_t k) {
    const Move& move = moves_[k];
    State& state = blocks_[move.block];
    if (state.present) {
      fail(Fault::Present, place, move.block, "is fetched, and is on the device");
    }
    const int64_t bytes = trace_.blocks[move.block].bytes;
    const double room =
        std::max(take(place, end_, bytes), inherited(fetches_into_, static_cast<Place>(k)));
    if (room == Ledger::kNever) {
      fail(Fault::Limit, place, move.block, "is fetched, and there is no memory for it");
    }
    state.present = true;
    const double seconds = machine_.in_seconds(trace_.blocks[move.block]);
    state.arrived = in_.transfer(std::max({end_, room, state.copied}), seconds);
    moved(Movement::Kind::In, place, move.block, state.arrived, seconds);
    result_.prediction.bytes_in += bytes;
  }

  // When what is handed over is free.
  double inherited(const Agenda& agenda, Place who) const {
    double free = 0;
    each(agenda, who, [&](size_t k) { free = std::max(free, free_[handovers_[k].from]); });
    return free;
  }

  void moved(Movement::Kind kind, Place place, uint32_t block, double end, double seconds) {
    result_.prediction.movements.push_back({kind, block, place, end - seconds, end});
  }

  Replay result_;
  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Move>& moves_;
  const std::vector<Handover>& handovers_;
  const Place size_;
  const Agenda copies_;
  const Agenda drops_;
  const Agenda fetches_;
  const Agenda births_;
  const Agenda deaths_;
  const Agenda inherits_; // of operators
  const Agenda fetches_into_; // of moves
  std::vector<double> free_; // of moves: when the memory was free the last time
  std::vector<State> blocks_;
  Ledger ledger_;
  Link out_;
  Link in_;
  double end_ = 0; // of the operator before, seconds
};

} // namespace

Replay replay(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Move>& moves,
    int iterations,
    const std::vector<Handover>& handovers) {
  return Player(trace, machine, moves, handovers).run(iterations);
}

} // namespace torch::cuda::lms::plan
