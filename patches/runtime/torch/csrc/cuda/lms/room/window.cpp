#include <torch/csrc/cuda/lms/room/window.h>

#include <torch/csrc/cuda/lms/base/stats.h>
#include <torch/csrc/cuda/lms/room/pages.h>

#include <algorithm>
#include <set>
#include <utility>

namespace torch::cuda::lms {

namespace {

using Segments = std::vector<const compat::cca::SegmentInfo*>;

// How many windows are looked at closely, of those that move the fewest bytes.
constexpr size_t kLooks = 128;

bool is_free(const compat::cca::SegmentInfo& segment, size_t range) {
  return !segment.blocks[range].allocated && !segment.blocks[range].active;
}

// Bytes of the ranges at the beginning, or at the end, that are free.
size_t free_at_begin(const compat::cca::SegmentInfo& segment) {
  return is_free(segment, 0) ? segment.blocks.front().size : 0;
}
size_t free_at_end(const compat::cca::SegmentInfo& segment) {
  return is_free(segment, segment.blocks.size() - 1) ? segment.blocks.back().size : 0;
}

// With expandable segments, the ranges of mapped pages are reported as segments, by address. The
// native allocator maps more pages between two of them, at the lowest place that is large enough.
// Returns the number of bytes that this takes from the device; SIZE_MAX without such segments.
size_t mapped_for(const Segments& segments, size_t bytes) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto& segment = *segments[i];
    if (!segment.is_expandable) {
      continue;
    }
    const size_t before = free_at_end(segment);
    if (i + 1 == segments.size() || !segments[i + 1]->is_expandable) {
      return in_pages(bytes - before); // nothing is mapped behind the last one
    }
    const size_t gap = segments[i + 1]->address - (segment.address + segment.total_size);
    if (before + gap + free_at_begin(*segments[i + 1]) >= bytes) {
      return std::min(gap, in_pages(bytes - before));
    }
  }
  return SIZE_MAX;
}

// Whether the native allocator can serve a request as it is.
bool fits(const Segments& segments, size_t bytes, size_t left) {
  for (const auto* const segment : segments) {
    for (size_t i = 0; i < segment->blocks.size(); ++i) {
      if (is_free(*segment, i) && segment->blocks[i].size >= static_cast<int64_t>(bytes)) {
        return true;
      }
    }
  }
  return mapped_for(segments, bytes) <= left;
}

std::vector<Block*> blocks_of(const Run& run, const Blocks& movable) {
  std::vector<Block*> blocks;
  for (auto block = movable.lower_bound(run.begin); block != movable.lower_bound(run.end);
       ++block) {
    blocks.push_back(block->second);
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) {
    return a->size > b->size;
  });
  return blocks;
}

// Whether all of the blocks, given the largest first, find free memory outside of the run. Like the
// native allocator, each takes the smallest free range that is large enough.
bool find_places(const Segments& segments, const Run& run, const std::vector<Block*>& blocks) {
  std::multiset<size_t> holes; // bytes
  for (const auto* const segment : segments) {
    size_t address = segment->address;
    for (size_t i = 0; i < segment->blocks.size(); ++i) {
      const size_t size = segment->blocks[i].size;
      if (is_free(*segment, i) && (address + size <= run.begin || run.end <= address)) {
        holes.insert(size);
      }
      address += size;
    }
  }
  for (const Block* const block : blocks) {
    const auto hole = holes.lower_bound(rounded(block->size));
    if (hole == holes.end()) {
      return false;
    }
    const size_t rest = *hole - rounded(block->size);
    holes.erase(hole);
    if (rest > StatArray::kSmallSize) { // otherwise it stays with the block
      holes.insert(rest);
    }
  }
  return true;
}

} // namespace

Window window(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    size_t left,
    const Blocks& movable) {
  Segments serving;
  for (const auto& segment : segments) {
    if (serves(segment, device, stream) && segment.is_large) {
      serving.push_back(&segment);
    }
  }
  if (fits(serving, bytes, left)) {
    return {};
  }
  std::vector<Run> runs;
  for (const auto* const segment : serving) {
    each_run(*segment, bytes, movable, [&](const Run& run) { runs.push_back(run); });
  }
  const auto looks = static_cast<std::ptrdiff_t>(std::min(runs.size(), kLooks));
  std::partial_sort(runs.begin(), runs.begin() + looks, runs.end(), [](const Run& a, const Run& b) {
    return a.cost < b.cost;
  });
  runs.resize(static_cast<size_t>(looks));
  for (const Run& run : runs) {
    std::vector<Block*> blocks = blocks_of(run, movable);
    if (find_places(serving, run, blocks)) {
      return {run.begin, run.end, std::move(blocks)};
    }
  }
  return {};
}

} // namespace torch::cuda::lms
