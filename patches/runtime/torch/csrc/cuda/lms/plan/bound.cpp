#include <torch/csrc/cuda/lms/plan/bound.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

// Bytes that can be away at the operators between two places.
struct Stretch {
  Place begin;
  Place end;
  int64_t bytes;
};

// What has to be away at each operator, less what can be away for nothing.
std::vector<int64_t> demand_of(
    const Machine& machine,
    const std::vector<int64_t>& living,
    const std::vector<Stretch>& for_nothing) {
  const auto size = static_cast<Place>(living.size());
  std::vector<int64_t> change(size + 1, 0);
  for (const Stretch& stretch : for_nothing) {
    for (const Place shift : {Place{0}, size}) {
      const Place begin = std::max(stretch.begin + 1, shift) - shift;
      const Place end = std::min(stretch.end, shift + size) - shift;
      if (begin < end) {
        change[begin] += stretch.bytes;
        change[end] -= stretch.bytes;
      }
    }
  }
  std::vector<int64_t> demand(size);
  int64_t away = 0;
  for (Place i = 0; i < size; ++i) {
    away += change[i];
    demand[i] = living[i] - machine.limit - away;
  }
  return demand;
}

// The fewest bytes, per iteration, of parts of stretches that meet the demand everywhere. At the
// first operator that lacks something, whichever part ends last does for it and serves longest
// afterwards: exact for a line of operators. Iteration after iteration is such a line, and its
// average tends to what a repeating choice needs.
int64_t least_bytes(std::vector<Stretch> stretches, const std::vector<int64_t>& demand) {
  const auto size = static_cast<Place>(demand.size());
  constexpr int kRounds = 12;
  std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
    return a.begin < b.begin;
  });
  struct Part {
    Place end; // counted from the first iteration
    size_t stretch;
    int64_t bytes;
    bool operator<(const Part& other) const {
      return std::make_pair(end, stretch) < std::make_pair(other.end, other.stretch);
    }
  };
  std::priority_queue<Part> idle;
  for (size_t k = 0; k < stretches.size(); ++k) {
    if (stretches[k].end > size) {
      idle.push({stretches[k].end - size, k, stretches[k].bytes});
    }
  }
  // What ends at an operator of this iteration, or of the next.
  std::vector<int64_t> ending(2 * size + 1, 0);
  std::vector<std::pair<size_t, int64_t>> across; // parts that are away at the iteration's end
  std::vector<std::pair<size_t, int64_t>> before;
  int64_t away = 0;
  int64_t total = 0;
  int64_t across_bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Place start = round * size;
    before.swap(across);
    across.clear();
    int64_t here = 0;
    int64_t late = 0;
    size_t next = 0;
    for (Place i = 0; i < size; ++i) {
      away -= ending[i];
      while (next < stretches.size() && stretches[next].begin < i) {
        idle.push({start + stretches[next].end, next, stretches[next].bytes});
        ++next;
      }
      int64_t missing = demand[i] - away;
      while (missing > 0 && !idle.empty()) {
        Part part = idle.top();
        idle.pop();
        if (part.end <= start + i) {
          // All others end before.
          idle = {};
          break;
        }
        const int64_t taken = std::min(missing, part.bytes);
        missing -= taken;
        away += taken;
        here += taken;
        ending[part.end - start] += taken;
        if (part.end > start + size) {
          across.emplace_back(part.stretch, taken);
          late += taken;
        }
        if (part.bytes > taken) {
          part.bytes -= taken;
          idle.push(part);
        }
      }
    }
    std::copy(ending.begin() + size, ending.end(), ending.begin());
    std::fill(ending.begin() + size, ending.end(), 0);
    // What ends exactly with the iteration is in both halves' seam: place `size` is now place 0.
    while (next < stretches.size()) {
      idle.push({start + stretches[next].end, next, stretches[next].bytes});
      ++next;
    }
    total += here;
    across_bytes = late;
    if (round > 0 && across == before) {
      return here;
    }
  }
  return std::max<int64_t>(0, (total - across_bytes) / kRounds);
}

int64_t
least_in(const Machine& machine, const std::vector<Gap>& gaps, const std::vector<int64_t>& living) {
  std::vector<Stretch> priced;
  std::vector<Stretch> for_nothing;
  for (const Gap& gap : gaps) {
    (gap.returns() ? priced : for_nothing).push_back({gap.begin, gap.end, gap.bytes});
  }
  return least_bytes(std::move(priced), demand_of(machine, living, for_nothing));
}

int64_t least_out(
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<int64_t>& living) {
  const auto size = static_cast<Place>(living.size());
  std::vector<Stretch> priced;
  std::vector<Stretch> for_nothing;
  for (size_t first = 0; first < gaps.size();) {
    size_t last = first;
    while (last < gaps.size() && gaps[last].block == gaps[first].block) {
      ++last;
    }
    // From a gap behind a write to the last one before the next write is one copy.
    size_t fresh = last;
    for (size_t k = first; k < last; ++k) {
      if (gaps[k].fresh) {
        fresh = k;
        break;
      }
    }
    if (fresh == last) {
      for (size_t k = first; k < last; ++k) {
        for_nothing.push_back({gaps[k].begin, gaps[k].end, gaps[k].bytes});
      }
    } else {
      for (size_t k = fresh; k < last; ++k) {
        if (gaps[k].fresh) {
          priced.push_back({gaps[k].begin, gaps[k].end, gaps[k].bytes});
        } else {
          priced.back().end = gaps[k].end;
        }
      }
      for (size_t k = first; k < fresh; ++k) {
        priced.back().end = gaps[k].end + size;
      }
      priced.back().end = std::min(priced.back().end, priced.back().begin + size);
    }
    first = last;
  }
  return least_bytes(std::move(priced), demand_of(machine, living, for_nothing));
}

// The time that an iteration takes because of what is above the limit at one operator.
double seconds_around(
    Place peak,
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    int64_t excess) {
  const Place size = trace.size();
  // By the operators' distance behind the peak: bytes that can be away at the peak, by their next
  // use, and by the last write before the peak.
  std::vector<int64_t> wanted(size + 1, 0);
  std::vector<int64_t> written(size + 1, 0);
  int64_t never_written = 0;
  int64_t never_wanted = 0;
  for (const Gap& gap : gaps) {
    for (const Place shift : {Place{0}, size}) {
      if (gap.begin < peak + shift && peak + shift < gap.end) {
        if (gap.returns()) {
          wanted[gap.next - shift - peak] += gap.bytes;
        } else {
          never_wanted += gap.bytes;
        }
        if (gap.written == Gap::kNever) {
          never_written += gap.bytes;
        } else {
          written[std::max<Place>(0, gap.written - shift - peak + size)] += gap.bytes;
        }
      }
    }
  }
  // What has to come back before the operator at a distance, though all that can wait does.
  std::vector<double> late(size + 1, 0);
  int64_t waits = never_wanted;
  for (Place q = size; q > 0; --q) {
    late[q] = static_cast<double>(std::max<int64_t>(0, excess - waits)) / machine.in_rate;
    waits += wanted[q];
  }
  double best_late = 0;
  double best = 0;
  double computed = 0; // from the peak's end to the start of the operator at the distance
  const double total = trace.seconds() - trace.operators[peak].seconds;
  int64_t early = never_written + written[0];
  for (Place q = 1; q < size; ++q) {
    best_late = std::max(best_late, late[q] - computed);
    computed += trace.operators[(peak + q) % size].seconds;
    // What was not written before this operator leaves behind it.
    const double leaving =
        static_cast<double>(std::max<int64_t>(0, excess - early)) / machine.out_rate;
    best = std::max(best, best_late + std::max(0.0, leaving - (total - computed)));
    early += written[q];
  }
  best_late = std::max(best_late, late[size] - computed);
  return trace.seconds() + std::max(best, best_late);
}

} // namespace

Bound bound_of(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<int64_t>& living) {
  Bound bound;
  bound.seconds = bound.one_hill_seconds = trace.seconds();
  const Place size = trace.size();
  const auto peak = std::max_element(living.begin(), living.end());
  if (peak == living.end() || *peak <= machine.limit) {
    return bound;
  }
  bound.excess_bytes = *peak - machine.limit;
  bound.bytes_in = least_in(machine, gaps, living);
  bound.bytes_out = least_out(machine, gaps, living);
  bound.seconds = std::max(
      {bound.seconds,
       static_cast<double>(bound.bytes_in) / machine.in_rate,
       static_cast<double>(bound.bytes_out) / machine.out_rate});

  // The highest operator of each of these parts of the iteration: any operator gives a bound.
  constexpr Place kParts = 16;
  for (Place part = 0; part < kParts; ++part) {
    const auto begin = living.begin() + part * size / kParts;
    const auto end = living.begin() + (part + 1) * size / kParts;
    const auto high = std::max_element(begin, end);
    if (high != end && *high > machine.limit) {
      const Place place = high - living.begin();
      bound.seconds = std::max(
          bound.seconds, seconds_around(place, trace, machine, gaps, *high - machine.limit));
    }
  }

  double up = 0;
  for (Place i = 0; i < peak - living.begin(); ++i) {
    up += trace.operators[i].seconds;
  }
  const auto excess = static_cast<double>(bound.excess_bytes);
  bound.one_hill_seconds = std::max(up, excess / machine.out_rate) +
                           std::max(trace.seconds() - up, excess / machine.in_rate);
  return bound;
}

} // namespace torch::cuda::lms::plan
