#pragma once

#include <torch/csrc/cuda/lms/base/published.h>

#include <cstddef>

namespace torch::cuda::lms {

// What the user sets. Read without the LMS mutex.
struct Settings {
  Published<bool> enabled{false};

  // Bytes that PyTorch may take from a device; 0 = what there is.
  Published<size_t> limit{0};

  // Bytes of the smallest storage that is managed. 1 MiB as in the first LMS.
  Published<size_t> size{size_t(1) << 20};

  // Bytes of host memory that may be pinned, for all devices; 0 = what the
  // machine has.
  Published<size_t> host_limit{0};

  // Page out everything idle at each allocation. For tests: any use of a
  // storage that the guard does not see becomes an error at once.
  Published<bool> stress{false};

  // Make room only for requests that have failed, and keep none for others. For tests.
  Published<bool> late{false};

  // Before a block is paged out without a copy, compare it with its host copy.
  // For tests: an operator that writes without saying so is counted.
  Published<bool> verify_clean{false};

  // As verify_clean, and compare every block with its host copy once more before
  // its memory is given up, behind the release check. For tests: what would be
  // lost is counted.
  Published<bool> verify{false};
};

} // namespace torch::cuda::lms
