#include <torch/csrc/cuda/lms/plan/selection.h>

#include <torch/csrc/cuda/lms/plan/tree.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <queue>
#include <utility>

namespace torch::cuda::lms::plan {
namespace {

// How long a gap serves. One of a block that no operator uses costs nothing, and goes first.
Place distance(const Gap& gap, Place shift) {
  return gap.begin < 0 ? Gap::kNever : gap.end + shift;
}

class Selection {
 public:
  // `missing`: bytes that have to be away, for each operator; less than none where there is room.
  Selection(
      const Trace& trace,
      const Machine& machine,
      const std::vector<Gap>& gaps,
      const std::vector<int64_t>& missing)
      : trace_(trace),
        machine_(machine),
        gaps_(gaps),
        size_(trace.size()),
        missing_(missing),
        chosen_(gaps.size()) {}

  std::vector<bool> run() {
    sweep();
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (chosen_[k]) {
        away(k, gaps_[k].bytes);
      }
    }
    complete();
    return_needless();
    exchange();
    cheapen();
    return_needless();
    return chosen_;
  }

 private:
  using Candidate = std::pair<std::pair<Place, int64_t>, size_t>; // (distance, bytes), gap

  void away(size_t k, int64_t bytes) {
    missing_.add(gaps_[k].begin + 1, gaps_[k].end, -bytes);
  }

  // Furthest next use first. The choice at the end of an iteration is where the next one begins.
  void sweep() {
    constexpr int kRounds = 4;
    std::vector<size_t> order(gaps_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return gaps_[a].begin < gaps_[b].begin;
    });
    std::vector<int64_t> demand(size_);
    for (Place i = 0; i < size_; ++i) {
      demand[i] = missing_.largest(i, i + 1);
    }
    std::vector<bool> before;
    std::vector<bool> across(gaps_.size(), false);
    for (int round = 0; round < kRounds && across != before; ++round) {
      before = across;
      chosen_.assign(gaps_.size(), false);
      std::vector<int64_t> ending(2 * size_ + 1, 0);
      std::priority_queue<Candidate> idle;
      int64_t away_now = 0;
      for (size_t k = 0; k < gaps_.size(); ++k) {
        if (gaps_[k].end > size_) {
          if (before[k]) {
            away_now += gaps_[k].bytes;
            ending[gaps_[k].end - size_] += gaps_[k].bytes;
          } else {
            idle.push({{distance(gaps_[k], -size_), gaps_[k].bytes}, k});
          }
        }
      }
      std::vector<bool> early(gaps_.size(), false); // chosen for what is left of the last iteration
      size_t next = 0;
      for (Place i = 0; i < size_; ++i) {
        away_now -= ending[i];
        while (next < order.size() && gaps_[order[next]].begin < i) {
          const Gap& gap = gaps_[order[next]];
          idle.push({{distance(gap, 0), gap.bytes}, order[next]});
          ++next;
        }
        while (away_now < demand[i] && !idle.empty()) {
          const size_t k = idle.top().second;
          const Place key = idle.top().first.first;
          idle.pop();
          const bool wraps = key == gaps_[k].end - size_;
          const Place end = wraps ? gaps_[k].end - size_ : gaps_[k].end;
          if (end <= i || chosen_[k]) {
            continue;
          }
          away_now += gaps_[k].bytes;
          ending[std::min(end, 2 * size_)] += gaps_[k].bytes;
          (wraps ? early : chosen_)[k] = true;
        }
      }
      for (size_t k = 0; k < gaps_.size(); ++k) {
        chosen_[k] = chosen_[k] || early[k];
        across[k] = chosen_[k] && gaps_[k].end > size_;
      }
    }
    for (size_t k = 0; k < gaps_.size(); ++k) {
      chosen_[k] = chosen_[k] || across[k];
    }
  }

  // Where the rounds did not come to rest, something may be missing.
  void complete() {
    if (missing_.largest(0, size_) <= 0) {
      return;
    }
    std::vector<size_t> order;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (!chosen_[k]) {
        order.push_back(k);
      }
    }
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return gaps_[a].end - gaps_[a].begin > gaps_[b].end - gaps_[b].begin;
    });
    for (const size_t k : order) {
      if (missing_.largest(gaps_[k].begin + 1, gaps_[k].end) > 0) {
        chosen_[k] = true;
        away(k, gaps_[k].bytes);
      }
    }
  }

  // The largest first: they cost most. Without those of blocks that nothing uses: it costs nothing
  // that they are away, and each may save another one.
  std::vector<size_t> chosen_by_bytes() const {
    std::vector<size_t> order;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (chosen_[k] && gaps_[k].begin >= 0) {
        order.push_back(k);
      }
    }
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      return gaps_[a].bytes > gaps_[b].bytes;
    });
    return order;
  }

  void return_needless() {
    for (const size_t k : chosen_by_bytes()) {
      if (missing_.largest(gaps_[k].begin + 1, gaps_[k].end) <= -gaps_[k].bytes) {
        chosen_[k] = false;
        away(k, -gaps_[k].bytes);
      }
    }
  }

  // Replaces a block by a smaller one that is enough.
  void exchange() {
    constexpr size_t kTries = 256; // blocks to replace
    constexpr size_t kLooks = 24; // others to look at for each
    std::vector<size_t> others;
    for (size_t k = 0; k < gaps_.size(); ++k) {
      if (!chosen_[k]) {
        others.push_back(k);
      }
    }
    std::stable_sort(others.begin(), others.end(), [this](size_t a, size_t b) {
      return gaps_[a].bytes < gaps_[b].bytes;
    });
    size_t tries = 0;
    for (const size_t k : chosen_by_bytes()) {
      const Gap& gap = gaps_[k];
      const int64_t spare = -missing_.largest(gap.begin + 1, gap.end);
      if (spare <= 0) {
        continue;
      }
      if (++tries > kTries) {
        break;
      }
      const auto first = std::lower_bound(
          others.begin(), others.end(), gap.bytes - spare, [this](size_t other, int64_t bytes) {
            return gaps_[other].bytes < bytes;
          });
      const size_t start = first - others.begin();
      for (size_t n = start; n < std::min(others.size(), start + kLooks); ++n) {
        const size_t other = others[n];
        if (gaps_[other].bytes >= gap.bytes) {
          break;
        }
        if (chosen_[other]) {
          continue;
        }
        away(k, -gap.bytes);
        away(other, gaps_[other].bytes);
        if (missing_.largest(gap.begin + 1, gap.end) <= 0) {
          chosen_[k] = false;
          chosen_[other] = true;
          break;
        }
        away(k, gap.bytes);
        away(other, -gaps_[other].bytes);
      }
    }
  }

  // Seconds that the links are busy because of a gap: with its fetch, and with its copy unless
  // another gap after the same write is chosen.
  double cost(size_t k) const {
    const Gap& gap = gaps_[k];
    double seconds = gap.returns() ? machine_.in_seconds(trace_.blocks[gap.block]) : 0;
    if (gap.written != Gap::kNever) {
      bool copied = false;
      for (size_t n = k; n > 0 && gaps_[n - 1].block == gap.block; --n) {
        copied = copied || (chosen_[n - 1] && same_write(n - 1, k));
      }
      for (size_t n = k + 1; n < gaps_.size() && gaps_[n].block == gap.block; ++n) {
        copied = copied || (chosen_[n] && same_write(n, k));
      }
      seconds += copied ? 0 : machine_.out_seconds(trace_.blocks[gap.block]);
    }
    return seconds;
  }

  bool same_write(size_t a, size_t b) const {
    return (gaps_[a].written - gaps_[b].written) % size_ == 0;
  }

  // Adds a gap that makes others needless which cost more together. Each try looks at all chosen
  // gaps, so there are fewer tries the more gaps there are.
  void cheapen() {
    constexpr size_t kLooks = 12000;
    std::vector<size_t> chosen = chosen_by_bytes();
    size_t looks = 0;
    for (bool changed = true; changed && looks < kLooks;) {
      changed = false;
      for (size_t k = 0; k < gaps_.size() && looks < kLooks; ++k) {
        if (chosen_[k]) {
          continue;
        }
        const double price = cost(k);
        chosen_[k] = true;
        away(k, gaps_[k].bytes);
        double saved = 0;
        std::vector<size_t> dropped;
        for (const size_t other : chosen) {
          ++looks;
          const Gap& gap = gaps_[other];
          if (chosen_[other] && missing_.largest(gap.begin + 1, gap.end) <= -gap.bytes) {
            chosen_[other] = false;
            away(other, -gap.bytes);
            saved += cost(other);
            dropped.push_back(other);
          }
        }
        if (saved > price * (1 + 1e-9)) {
          chosen.push_back(k);
          changed = true;
          continue;
        }
        for (const size_t other : dropped) {
          chosen_[other] = true;
          away(other, gaps_[other].bytes);
        }
        chosen_[k] = false;
        away(k, -gaps_[k].bytes);
      }
    }
  }

  const Trace& trace_;
  const Machine& machine_;
  const std::vector<Gap>& gaps_;
  const Place size_;
  Tree missing_;
  std::vector<bool> chosen_;
};

} // namespace

std::vector<bool> select(
    const Trace& trace,
    const Machine& machine,
    const std::vector<Gap>& gaps,
    const std::vector<int64_t>& living,
    const std::vector<int64_t>& needed,
    const std::vector<int64_t>& room) {
  std::vector<int64_t> missing(living.size());
  for (size_t i = 0; i < living.size(); ++i) {
    missing[i] = living[i] - std::max(room[i], needed[i]);
  }
  return Selection(trace, machine, gaps, missing).run();
}

} // namespace torch::cuda::lms::plan
