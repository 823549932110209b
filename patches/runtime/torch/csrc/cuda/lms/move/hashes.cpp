#include <torch/csrc/cuda/lms/move/hashes.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torch::cuda::lms {

std::optional<Checker::Slot> Hashes::take() {
  if (!checker_.ready()) {
    give_up(retired_.size());
  }
  try {
    return checker_.take();
  } catch (const c10::Error&) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
}

void Hashes::retire(Checker::Slot hash, EventRef touched) {
  users_.erase(hash);
  retired_.push_back({hash, std::move(touched)});
}

void Hashes::give_up(size_t most) {
  for (size_t left = most; left > 0 && !retired_.empty(); --left) {
    const Retired& first = retired_.front();
    if (first.touched && !first.touched->done()) {
      return;
    }
    checker_.give(first.hash);
    retired_.pop_front();
  }
}

void Hashes::report() {
  TORCH_CHECK(
      !checker_.corrupted(),
      "Large Model Support (LMS): what was compressed came back from host memory with other bits, "
      "so "
      "LMS has stopped the GPU before anything could be computed with it. Start the program again "
      "with torch.cuda.lms.set_compression(\"off\"), and report this.");
  const uint64_t caught = checker_.caught();
  if (C10_LIKELY(caught == reported_)) {
    return;
  }
  reported_ = caught;
  const auto found = users_.find(checker_.last_caught());
  const char* const user = found == users_.end() ? nullptr : found->second;
  TORCH_WARN_ONCE(
      "Large Model Support (LMS): memory was written, and no operator reported it",
      user ? ". It was last used by " : "",
      user ? user : "",
      ". Nothing is lost, because LMS compares what it pages out. But code that also reads such "
      "memory works only while the memory is on the GPU: call it through torch.cuda.lms.wrap(). "
      "This warning is shown once; torch.cuda.lms.stats()[\"release_caught\"] counts all cases.");
}

} // namespace torch::cuda::lms
