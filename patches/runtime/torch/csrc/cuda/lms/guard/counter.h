#pragma once

namespace torch::cuda::lms {

// Counts the operators that run, without looking at them.
class Counter {
 public:
  // Starts to count. The LMS mutex must be held. Returns false if PyTorch has no cheap way to do
  // so.
  static bool install();
  static void remove();

  // Whether no counted operator runs. Called after remove(): operators that this misses call
  // Watch::counted_late().
  static bool none_runs();

  // Whether this thread is in a counted operator.
  static bool in_operator();

  // Counts code of this thread that is not an operator but uses storages like one. count() returns
  // false if the guard has to see the code instead; uncount() must not be called then.
  static bool count();
  static void uncount();
};

} // namespace torch::cuda::lms
