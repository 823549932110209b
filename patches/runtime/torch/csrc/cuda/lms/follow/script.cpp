#include <torch/csrc/cuda/lms/follow/script.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace torch::cuda::lms {

using Kind = TraceEvent::Kind;

Script::Script(const std::vector<TraceEvent>& recorded) {
  for (const TraceEvent& event : recorded) {
    if (!compared(event)) {
      continue;
    }
    events_.push_back(event);
    if (event.kind == Kind::Operator) {
      ++size_;
    } else if (event.block >= uses_.size()) {
      uses_.resize(event.block + 1);
    }
    const bool use = event.kind == Kind::Read || event.kind == Kind::Written;
    if (use && size_ > 0) {
      std::vector<plan::Place>& uses = uses_[event.block];
      if (uses.empty() || uses.back() != size_ - 1) {
        uses.push_back(size_ - 1);
      }
    }
  }
}

bool Script::compared(const TraceEvent& event) {
  switch (event.kind) {
    case Kind::Operator:
    case Kind::Allocated:
    case Kind::Known:
    case Kind::Read:
    case Kind::Written:
      return true;
    default:
      return false;
  }
}

bool Script::same(const TraceEvent& a, const TraceEvent& b) {
  // The value of an operator is a time.
  return a.kind == b.kind && a.block == b.block && a.name == b.name &&
         (a.kind == Kind::Operator || a.value == b.value);
}

bool Script::is(const std::vector<TraceEvent>& events) const {
  size_t known = 0;
  for (const TraceEvent& event : events) {
    if (compared(event) && (known == events_.size() || !same(event, events_[known++]))) {
      return false;
    }
  }
  return known == events_.size();
}

void Script::set(plan::Plan plan, Places places) {
  follow({std::move(plan), std::move(places), asked_, allowance(asked_.limit)});
}

bool Script::take_back(int64_t limit, bool compress) {
  const auto suits = [&](const Made& made) {
    return made.asked.is(limit, compress) && made.asked.part == slack_.part() &&
           static_cast<bool>(made.places) == placing_.wanted() &&
           made.places.bytes() <= placing_.most();
  };
  if (!suits(made_)) {
    const auto earlier = std::find_if(earlier_.begin(), earlier_.end(), suits);
    if (earlier == earlier_.end()) {
      return false;
    }
    Made back = std::move(*earlier);
    earlier_.erase(earlier);
    follow(std::move(back));
  }
  ask(limit, compress);
  return true;
}

void Script::follow(Made made) {
  constexpr size_t kMost = 8; // slack takes fewer steps without finding anything faster
  if (planned_ && made_.asked.limit > 0) {
    if (earlier_.size() == kMost) {
      earlier_.erase(earlier_.begin());
    }
    earlier_.push_back(std::move(made_));
  }
  made_ = std::move(made);
  laid_out_ = false;
  planned_ = true;
  slow_ = 0; // of the plan before
  make_actions();
}

// The place of the first operator that is expected to start clearly after the transfer has ended.
// From size() on, it is in the next iteration.
plan::Place Script::end_of(const plan::Movement& movement) const {
  constexpr double kMargin = 0.02; // of an iteration
  const plan::Prediction& prediction = made_.plan.prediction;
  const double end = movement.end + kMargin * prediction.seconds;
  const std::vector<double>& starts = prediction.starts;
  const auto first = [&](double time) {
    return std::lower_bound(starts.begin(), starts.end(), time) - starts.begin();
  };
  const plan::Place place = first(end);
  return place < size_ ? place : size_ + first(end - prediction.seconds);
}

void Script::make_actions() {
  using Movement = plan::Movement::Kind;
  actions_.clear();
  std::map<std::tuple<Movement, uint32_t, plan::Place>, plan::Place> ends;
  for (const plan::Movement& movement : made_.plan.prediction.movements) {
    ends[{movement.kind, movement.block, movement.place}] = end_of(movement);
  }
  // The times of a movement are those of the iteration in which it is issued.
  const auto end = [&](Movement kind, uint32_t block, plan::Place issued) {
    const auto found = ends.find({kind, block, issued % size_});
    return found == ends.end() ? plan::Move::kNone : found->second + issued / size_ * size_;
  };
  // Of an action in the next iteration, as seen from there.
  const auto add = [&](plan::Place place,
                       Action::Kind kind,
                       const plan::Move& move,
                       plan::Place ended = plan::Move::kNone) {
    const bool next = place >= size_;
    const uint32_t number = next ? link(move.block + 1) : move.block + 1;
    const plan::Place shift = next ? size_ : 0;
    if (number > 0) {
      actions_.push_back(
          {place - shift, kind, move.needed_at - shift, ended - shift, number, move.packs});
    }
  };
  for (const plan::Move& move : made_.plan.moves) {
    if (move.copy_after == plan::Move::kNone) {
      continue; // nothing uses the block, so it leaves first anyway
    }
    if (move.copies) {
      const plan::Place ended = end(Movement::Out, move.block, move.copy_after);
      add(move.copy_after + 1, Action::Kind::Copy, move, ended);
    }
    add(std::max(move.drop_before, move.last_use + 1), Action::Kind::Drop, move);
    if (move.returns()) {
      const plan::Place ended = end(Movement::In, move.block, move.fetch_before);
      add(move.fetch_before, Action::Kind::Fetch, move, ended);
    }
  }
  std::stable_sort(actions_.begin(), actions_.end(), [](const Action& a, const Action& b) {
    const auto order = [](const Action& action) {
      const bool fetch = action.kind == Action::Kind::Fetch;
      return std::make_tuple(action.place, action.kind, fetch ? action.needed : 0);
    };
    return order(a) < order(b);
  });
}

void Script::took(double seconds, bool with_plan) {
  constexpr double kSlower = 1.02;
  constexpr unsigned kOften = 5; // the first iterations with a plan make their way into it
  constexpr unsigned kFirst = 3; // iterations on demand; then, as long as the plan is slower,
  constexpr unsigned kLonger = 16; // these, and twice as many each time
  constexpr unsigned kLongest = 4096;
  if (!with_plan) {
    on_demand_ = on_demand_ > 0 ? std::min(on_demand_, seconds) : seconds;
    rest_ -= rest_ > 0;
  } else if (on_demand_ > 0 && rest_ == 0) {
    if (seconds <= kSlower * on_demand_) {
      slow_ = next_rest_ = 0;
    } else if (++slow_ == kOften) {
      rest_ = next_rest_ > 0 ? next_rest_ : kFirst;
      next_rest_ = std::min(kLongest, std::max(kLonger, 2 * rest_));
      slow_ = 0;
      on_demand_ = 0;
    }
  }
}

plan::Place Script::next_use(uint32_t number, plan::Place place) const {
  if (number < uses_.size()) {
    const auto next = std::upper_bound(uses_[number].begin(), uses_[number].end(), place);
    if (next != uses_[number].end()) {
      return *next;
    }
  }
  const uint32_t later = link(number);
  return later > 0 && later < uses_.size() && !uses_[later].empty() ? size_ + uses_[later].front()
                                                                    : plan::Move::kNone;
}

} // namespace torch::cuda::lms
