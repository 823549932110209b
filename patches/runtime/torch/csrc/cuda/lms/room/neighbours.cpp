#include <torch/csrc/cuda/lms/room/neighbours.h>

namespace torch::cuda::lms {

std::vector<Block*> neighbours(
    const std::vector<compat::cca::SegmentInfo>& segments,
    c10::DeviceIndex device,
    cudaStream_t stream,
    size_t bytes,
    const Blocks& idle) {
  Run best{0, 0, SIZE_MAX};
  for (const auto& segment : segments) {
    if (serves(segment, device, stream)) {
      each_run(
          segment, bytes, idle, [&](const Run& run) { best = run.cost < best.cost ? run : best; });
    }
  }
  std::vector<Block*> chosen;
  for (auto block = idle.lower_bound(best.begin); block != idle.lower_bound(best.end); ++block) {
    chosen.push_back(block->second);
  }
  return chosen;
}

} // namespace torch::cuda::lms
