#include <torch/csrc/cuda/lms/room/neighbours.h>

namespace torch::cuda::lms {

std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const Blocks& idle) {
  std::vector<Range> ranges;
  for (const auto& segment : segments) {
    if (serves(segment, device, stream)) {
      append_ranges(segment, idle, ranges);
    }
  }
  Run best{0, 0, SIZE_MAX};
  each_run(ranges, bytes, [&](const Run& run) { best = run.cost < best.cost ? run : best; });
  std::vector<Block*> chosen;
  for (size_t i = best.first; i < best.last; ++i) {
    if (ranges[i].block) {
      chosen.push_back(ranges[i].block);
    }
  }
  return chosen;
}

} // namespace torch::cuda::lms
