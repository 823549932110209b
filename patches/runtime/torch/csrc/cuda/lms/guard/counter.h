#pragma once

namespace torch::cuda::lms {

// Counts the operators that run, and looks at none of them.
class Counter {
 public:
  // Starts to count, with the LMS mutex held; false where no way is cheap.
  static bool install();
  static void remove();

  // Whether no counted operator runs, now that install() is undone: those that it
  // misses call Watch::counted_late().
  static bool none_runs();

  // Whether this thread is in a counted operator.
  static bool in_operator();
};

} // namespace torch::cuda::lms
