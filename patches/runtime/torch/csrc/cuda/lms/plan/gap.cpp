#include <torch/csrc/cuda/lms/plan/gap.h>

#include <algorithm>

namespace torch::cuda::lms::plan {
namespace {

struct BlockUse {
  Place place;
  bool writes;
};

std::vector<std::vector<BlockUse>> uses_of(const Trace& trace) {
  std::vector<std::vector<BlockUse>> uses(trace.blocks.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!trace.blocks[i].persistent()) {
      // Nothing of a new block is on the host.
      uses[i].push_back({trace.blocks[i].allocated, true});
    }
  }
  for (Place place = 0; place < trace.size(); ++place) {
    for (const Access access : trace.operators[place].accesses) {
      std::vector<BlockUse>& of_block = uses[access.block];
      if (!of_block.empty() && of_block.back().place == place) {
        of_block.back().writes |= access.writes;
      } else {
        of_block.push_back({place, access.writes});
      }
    }
  }
  return uses;
}

} // namespace

std::vector<Gap> gaps_of(const Trace& trace) {
  std::vector<Gap> gaps;
  const Place size = trace.size();
  const std::vector<std::vector<BlockUse>> all = uses_of(trace);
  for (uint32_t i = 0; i < all.size(); ++i) {
    const Block& block = trace.blocks[i];
    const std::vector<BlockUse>& uses = all[i];
    if (block.bytes == 0 || block.stays || size == 0) {
      continue;
    }
    if (uses.empty()) {
      gaps.push_back({i, block.bytes, -1, size, Gap::kNever, Gap::kNever, false});
      continue;
    }
    // The last write, seen from the first use.
    Place written = Gap::kNever;
    for (const BlockUse& use : uses) {
      if (use.writes) {
        written = use.place - size;
      }
    }
    const size_t first_gap = gaps.size();
    bool fresh = false;
    for (size_t k = 0; k < uses.size(); ++k) {
      const Place begin = uses[k].place;
      if (uses[k].writes) {
        written = begin;
        fresh = true;
      }
      const bool last = k + 1 == uses.size();
      Gap gap{i, block.bytes, begin, 0, Gap::kNever, written, fresh};
      if (!last) {
        gap.end = gap.next = uses[k + 1].place;
      } else if (block.persistent()) {
        gap.end = gap.next = uses[0].place + size;
      } else {
        gap.end = block.freed + 1;
      }
      if (gap.end > begin + 1) {
        gaps.push_back(gap);
        fresh = false;
      }
    }
    // Writes after the last gap are before the first one of the next iteration.
    if (fresh && block.persistent() && gaps.size() > first_gap) {
      gaps[first_gap].fresh = true;
    }
  }
  return gaps;
}

namespace {

// What is unmanaged, and the living blocks that count, at each operator.
template <class F>
std::vector<int64_t> living(const Trace& trace, F counts) {
  std::vector<int64_t> bytes(trace.operators.size(), 0);
  int64_t always = trace.unmanaged;
  for (const Block& block : trace.blocks) {
    if (!counts(block)) {
      continue;
    }
    if (block.persistent()) {
      always += block.bytes;
    } else {
      bytes[block.allocated] += block.bytes;
      if (block.freed + 1 < trace.size()) {
        bytes[block.freed + 1] -= block.bytes;
      }
    }
  }
  int64_t sum = always;
  for (int64_t& here : bytes) {
    sum += here;
    here = sum;
  }
  return bytes;
}

} // namespace

std::vector<int64_t> living(const Trace& trace) {
  return living(trace, [](const Block&) { return true; });
}

std::vector<int64_t> needed(const Trace& trace) {
  std::vector<int64_t> bytes = living(trace, [](const Block& block) { return block.stays; });
  const std::vector<std::vector<BlockUse>> all = uses_of(trace);
  for (size_t i = 0; i < all.size(); ++i) {
    for (const BlockUse& use : all[i]) {
      bytes[use.place] += trace.blocks[i].stays ? 0 : trace.blocks[i].bytes;
    }
  }
  return bytes;
}

std::vector<bool>
copies(const Trace& trace, const std::vector<Gap>& gaps, const std::vector<bool>& chosen) {
  std::vector<bool> result(gaps.size(), false);
  for (size_t first = 0; first < gaps.size();) {
    size_t last = first;
    while (last < gaps.size() && gaps[last].block == gaps[first].block) {
      ++last;
    }
    if (gaps[first].written != Gap::kNever) {
      bool true_copy = false;
      // Twice: what the host has at the beginning is what it had at the end.
      const int rounds = trace.blocks[gaps[first].block].persistent() ? 2 : 1;
      for (int round = 0; round < rounds; ++round) {
        for (size_t k = first; k < last; ++k) {
          true_copy = true_copy && !gaps[k].fresh;
          if (chosen[k]) {
            result[k] = !true_copy;
            true_copy = true;
          }
        }
      }
    }
    first = last;
  }
  return result;
}

} // namespace torch::cuda::lms::plan
