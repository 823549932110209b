#pragma once

#include <torch/csrc/cuda/lms/base/published.h>

#include <cstddef>

namespace torch::cuda::lms {

enum class Compression { Auto, On, Off };

// The user's settings. They are read without the LMS mutex.
struct Settings {
  Published<bool> enabled{false};

  // Maximum number of bytes that PyTorch may take from a device; 0 means all that is available.
  Published<size_t> limit{0};

  // Size in bytes of the smallest storage that is managed. The default is that of the first LMS.
  Published<size_t> size{size_t(1) << 20};

  // Maximum number of bytes of host memory that may be pinned for all devices together; 0 means all
  // that the machine has.
  Published<size_t> host_limit{0};

  // Learn which iterations repeat, and plan them.
  Published<bool> plan{true};

  // Which blocks are compressed on their way to the host: those that shrink in iterations that this
  // makes faster, all, or none.
  Published<Compression> compression{Compression::Auto};

  // Follow plans even if iterations take longer with them, as if those with a plan that uses less
  // memory were faster, and as if this way of Trial was the fastest: 1 to 3 in their order. 0 is
  // off. For tests, whose times mean nothing.
  Published<int> keep_plans{0};

  // Page out all idle blocks at each allocation. For tests: any use of a storage that the guard
  // does not see fails at once.
  Published<bool> stress{false};

  // Move all idle blocks to other places on the device at each request. For tests: what uses an old
  // address finds other bytes there.
  Published<bool> shuffle{false};

  // Make room only after a request has failed, and keep no memory free for libraries. For tests.
  Published<bool> late{false};

  // Compare a block with its host copy before it is paged out without a copy. For tests: this
  // counts the writes of operators that do not declare them.
  Published<bool> verify_clean{false};

  // Like verify_clean, but compare every block with its host copy once more after the release
  // check, before its memory is given up. For tests: this counts writes that would be lost.
  Published<bool> verify{false};

  // Neither hash nor compare what is copied, so that unseen writes may be lost. For tests that
  // measure what the release check costs.
  Published<bool> unchecked{false};
};

} // namespace torch::cuda::lms
