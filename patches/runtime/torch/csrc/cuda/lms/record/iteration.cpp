#include <torch/csrc/cuda/lms/record/iteration.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace torch::cuda::lms {

namespace {

using Kind = TraceEvent::Kind;
using Events = std::vector<TraceEvent>;

// Where the events of the last iteration begin and end.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// Between two steps of the same optimizer: the one that takes the fewest, or, of several, the last.
// If the program says itself where iterations end, the optimizers do not count.
Range between_the_last_steps(const Events& events) {
  struct Steps {
    Range last;
    size_t count = 0;
  };
  std::map<uint32_t, Steps> optimizers;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == Kind::Step) {
      Steps& steps = optimizers[events[i].block];
      steps.last = {steps.last.end, i + 1};
      ++steps.count;
    }
  }
  Steps found;
  for (const auto& [optimizer, steps] : optimizers) {
    const bool fewer = found.count == 0 || steps.count < found.count ||
                       (steps.count == found.count && steps.last.end > found.last.end);
    if (steps.count > 1 && fewer) {
      found = steps;
    }
    if (optimizer == 0 && steps.count > 1) {
      break;
    }
  }
  return found.last;
}

class Reader {
 public:
  Reader(const Events& events, const std::vector<std::string>& names)
      : events_(events), names_(names) {}

  plan::Trace read(Range range) {
    for (size_t i = 0; i < range.begin; ++i) {
      before(events_[i]);
    }
    // Blocks that no operator of the iteration uses take memory, too.
    for (const auto& [number, bytes] : bytes_) {
      add(number, bytes);
    }
    for (size_t i = range.begin; i < range.end; ++i) {
      during(events_[i]);
    }
    end_operator();
    for (const auto& [number, index] : live_) {
      plan::Block& block = trace_.blocks[index];
      if (!block.persistent()) {
        block.freed = last(); // in the next iteration
      }
    }
    share_times();
    return std::move(trace_);
  }

 private:
  void before(const TraceEvent& event) {
    switch (event.kind) {
      case Kind::Allocated:
      case Kind::Known:
        bytes_[event.block] = static_cast<int64_t>(event.value);
        break;
      case Kind::Freed:
        bytes_.erase(event.block);
        break;
      case Kind::Mark:
      case Kind::Stalled:
      case Kind::Resumed:
        time_ = std::max(time_, event.value);
        break;
      default:
        break;
    }
  }

  void during(const TraceEvent& event) {
    switch (event.kind) {
      case Kind::Operator:
        end_operator();
        trace_.operators.emplace_back();
        trace_.operators.back().name = event.name < names_.size() ? names_[event.name] : "";
        break;
      case Kind::Allocated:
        add(event.block, static_cast<int64_t>(event.value)).allocated = last();
        changes_.push_back({live_[event.block], static_cast<int64_t>(event.value)});
        break;
      case Kind::Known:
        add(event.block, static_cast<int64_t>(event.value));
        break;
      case Kind::Read:
      case Kind::Written:
        use(event.block, event.kind == Kind::Written);
        break;
      case Kind::Freed:
        free(event.block);
        break;
      case Kind::Mark:
        marks_.push_back({trace_.operators.size(), event.value, false});
        break;
      case Kind::Stalled:
      case Kind::Resumed:
        // Nearly all waits are for what the operator needs before it can do its work.
        marks_.push_back(
            {std::max<size_t>(trace_.operators.size(), 1) - 1,
             event.value,
             event.kind == Kind::Resumed});
        break;
      case Kind::Step:
        break;
    }
  }

  // The operator that runs. Before the first one, that is the one to come.
  plan::Place last() const {
    return std::max<plan::Place>(trace_.size() - 1, 0);
  }

  plan::Block& add(uint32_t number, int64_t bytes) {
    live_[number] = static_cast<uint32_t>(trace_.blocks.size());
    trace_.blocks.emplace_back();
    last_uses_.emplace_back();
    trace_.blocks.back().bytes = bytes;
    return trace_.blocks.back();
  }

  void use(uint32_t number, bool writes) {
    const auto found = live_.find(number);
    if (trace_.operators.empty() || found == live_.end()) {
      return; // of an operator that began in the iteration before
    }
    const uint32_t index = found->second;
    auto& accesses = trace_.operators.back().accesses;
    LastUse& last = last_uses_[index];
    if (last.operators == trace_.operators.size()) {
      accesses[last.access].writes = accesses[last.access].writes || writes;
    } else {
      last = {trace_.operators.size(), accesses.size()};
      accesses.push_back({index, writes});
    }
  }

  void free(uint32_t number) {
    const auto found = live_.find(number);
    if (found == live_.end()) {
      return;
    }
    plan::Block& block = trace_.blocks[found->second];
    block.allocated = std::max<plan::Place>(block.allocated, 0);
    block.freed = last();
    if (trace_.operators.empty()) {
      block.bytes = 0; // the iteration before had it, to its end
    }
    changes_.push_back({found->second, -block.bytes});
    live_.erase(found);
  }

  // The planner takes what an operator allocates for what it needs all at once. Of the blocks that
  // live within it, only as many bytes count as it has at the same time.
  void end_operator() {
    int64_t now = 0;
    int64_t most = 0;
    int64_t kept = 0; // of what it allocated
    int64_t passing = 0; // of what it has freed as well
    std::unordered_set<uint32_t> born; // without those of the iteration before
    std::vector<uint32_t> passed;
    for (const Change& change : changes_) {
      now += change.bytes;
      most = std::max(most, now);
      if (change.bytes > 0) {
        kept += change.bytes;
        born.insert(change.block);
      } else if (born.count(change.block) > 0 && !trace_.operators.empty()) {
        kept += change.bytes;
        passing -= change.bytes;
        passed.push_back(change.block);
      }
    }
    for (const uint32_t index : passed) {
      trace_.blocks[index].bytes = 0;
    }
    if (!passed.empty()) {
      trace_.blocks[passed.front()].bytes = std::min(std::max<int64_t>(most - kept, 0), passing);
    }
    changes_.clear();
  }

  void share_times() {
    size_t first = 0;
    double seconds = 0; // that no operator has yet
    for (const Mark& mark : marks_) {
      const uint64_t time = std::max(time_, mark.time);
      seconds += mark.waited ? 0 : static_cast<double>(time - time_) * 1e-9;
      time_ = time;
      const size_t count = mark.operators - std::min(first, mark.operators);
      for (size_t i = first; i < mark.operators; ++i) {
        trace_.operators[i].seconds = seconds / static_cast<double>(count);
      }
      if (count > 0) {
        seconds = 0;
        first = mark.operators;
      }
    }
    // After the last mark nothing is known: as long as the operators before it, on average.
    const double known = trace_.seconds();
    for (size_t i = first; i < trace_.operators.size(); ++i) {
      trace_.operators[i].seconds = first > 0 ? known / static_cast<double>(first) : 0;
    }
  }

  struct Change {
    uint32_t block; // its index
    int64_t bytes; // more than 0 if it was allocated, less if it was freed
  };

  struct LastUse {
    size_t operators = 0; // as many as there were with the one that used it
    size_t access = 0; // its place among the operator's accesses
  };

  struct Mark {
    size_t operators; // that had done their work
    uint64_t time; // nanoseconds
    bool waited; // no operator ran since the mark before
  };

  const Events& events_;
  const std::vector<std::string>& names_;
  plan::Trace trace_;
  std::unordered_map<uint32_t, uint32_t> live_; // indices of blocks, by their numbers
  std::map<uint32_t, int64_t> bytes_; // of the blocks that live when it begins, by their numbers
  std::vector<LastUse> last_uses_; // of each block
  std::vector<Change> changes_; // since the operator began
  std::vector<Mark> marks_;
  uint64_t time_ = 0; // of the last mark
};

} // namespace

plan::Trace
iteration(const Events& events, const std::vector<std::string>& names, int64_t unmanaged) {
  plan::Trace trace = Reader(events, names).read({0, events.size()});
  trace.unmanaged = unmanaged;
  return trace;
}

plan::Trace
last_iteration(const Events& events, const std::vector<std::string>& names, int64_t unmanaged) {
  plan::Trace trace = Reader(events, names).read(between_the_last_steps(events));
  trace.unmanaged = unmanaged;
  return trace;
}

} // namespace torch::cuda::lms
