#pragma once

#include <atomic>
#include <cstddef>

namespace torch::cuda::lms {

// What the user sets. Read without the LMS mutex.
struct Settings {
  std::atomic<bool> enabled{false};

  // Bytes of managed storages on a device before LMS pages out; 0 = automatic.
  std::atomic<size_t> limit{0};

  // Bytes of the smallest storage that is managed. 1 MiB as in the first LMS.
  std::atomic<size_t> size{size_t(1) << 20};

  // Bytes of host memory that may be pinned, for all devices; 0 = what the
  // machine has.
  std::atomic<size_t> host_limit{0};

  // torch.distributed is in use, so DistributedDataParallel may be, whose
  // reducer compares storages: see Pager::compared().
  std::atomic<bool> distributed{false};

  // Page out everything idle at each allocation. For tests: any use of a
  // storage that the guard does not see becomes an error at once.
  std::atomic<bool> stress{false};

  // Before a block is paged out without a copy, compare it with its host copy.
  // For tests: an operator that writes without saying so is counted.
  std::atomic<bool> verify_clean{false};
};

} // namespace torch::cuda::lms
