#include <torch/csrc/cuda/lms/room/neighbours.h>

namespace torch::cuda::lms {

namespace {

// A range of a segment that is free, or that a page-out can free.
struct Range {
  size_t size; // bytes
  Block* block; // to page out; null if the range is free
};

} // namespace

std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const std::unordered_map<size_t, Block*>& idle) {
  std::vector<Block*> best;
  size_t best_cost = SIZE_MAX; // bytes to move
  std::vector<Range> run; // adjacent ranges, up to the current one
  for (const auto& segment : segments) {
    if (segment.device != device || segment.stream != stream ||
        segment.owner_private_pool_id != compat::MempoolId{0, 0}) {
      continue;
    }
    run.clear();
    size_t first = 0; // index of the first range of `run` that is needed
    size_t total = 0; // bytes of the ranges from `first` on
    size_t cost = 0; // how many of these bytes have to be moved
    size_t address = segment.address;
    for (const auto& range : segment.blocks) {
      const auto found = idle.find(address);
      address += range.size;
      const bool free = !range.allocated && !range.active;
      if (!free && found == idle.end()) {
        run.clear();
        first = total = cost = 0;
        continue;
      }
      Block* const block = free ? nullptr : found->second;
      run.push_back({static_cast<size_t>(range.size), block});
      total += range.size;
      cost += block ? range.size : 0;
      while (total - run[first].size >= bytes) {
        total -= run[first].size;
        cost -= run[first].block ? run[first].size : 0;
        ++first;
      }
      if (total >= bytes && cost < best_cost) {
        best_cost = cost;
        best.clear();
        for (size_t i = first; i < run.size(); ++i) {
          if (run[i].block) {
            best.push_back(run[i].block);
          }
        }
      }
    }
  }
  return best;
}

} // namespace torch::cuda::lms
