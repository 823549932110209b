#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// The current value, its peak since the last reset, and the sums of all increases and decreases:
// the same four numbers as in torch.cuda.memory_stats().
struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;
  int64_t freed = 0;

  void add(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    (amount > 0 ? allocated : freed) += amount > 0 ? amount : -amount;
  }
  void reset_peak() {
    peak = current;
  }
  void reset_accumulated() {
    allocated = 0;
    freed = 0;
  }
};

// {all, small_pool, large_pool}, divided in the same way as in the native allocator.
struct StatArray {
  static constexpr size_t kSmallSize = size_t(1) << 20; // bytes, c10's kSmallSize

  std::array<Stat, 3> stats;

  void add(int64_t amount, size_t block_size) {
    stats[0].add(amount);
    stats[block_size <= kSmallSize ? 1 : 2].add(amount);
  }
  void reset_peak() {
    for (Stat& stat : stats) {
      stat.reset_peak();
    }
  }
  void reset_accumulated() {
    for (Stat& stat : stats) {
      stat.reset_accumulated();
    }
  }
};

// How an allocation was served, in the categories of the first LMS.
enum class Source {
  FreeList, // from the native allocator's cache
  CudaMalloc, // new memory from the device
  ReclaimOne, // after one page-out
  ReclaimFragments, // after all idle blocks were paged out
  ReclaimAll, // after everything idle was paged out
  CudaMallocRetry, // after the native allocator's cache was emptied
};
constexpr size_t kSources = 6;

struct Stats {
  StatArray pinned; // blocks in use by an operator
  StatArray pinned_bytes;
  Stat resident_bytes; // on the device, of storages that an operator has used
  Stat paged_out_bytes; // managed, and only on the host
  Stat held_bytes; // on the device until the program releases it: see Residency::lasting()
  int64_t page_out_count = 0;
  int64_t page_out_bytes = 0;
  int64_t page_in_count = 0;
  int64_t page_in_bytes = 0;
  int64_t clean_count = 0; // page-outs that did not need a copy
  int64_t compacted_count = 0; // blocks that were moved on the device, to join free memory
  int64_t compacted_bytes = 0;
  int64_t adopted = 0; // storages that came under management
  int64_t out_of_memory_retries = 0; // allocations that failed at first
  int64_t out_of_memory_caught = 0; // failed allocations in operators that went on without an error
  int64_t over_limit_count = 0; // requests for which the user's limit gave way
  int64_t over_limit_bytes_peak = 0; // the most by which the limit was exceeded
  int64_t clean_violations = 0; // see Settings::verify_clean
  int64_t violations = 0; // see Settings::verify
  int64_t plans = 0; // that were made
  int64_t planned_iterations = 0; // that did what their plan expected, to their end
  int64_t plan_departures = 0; // iterations that did not
  int64_t copied_ahead_count = 0; // blocks that a plan copied to the host while they were in use
  int64_t prefetch_count = 0; // page-ins that a plan asked for before an operator did
  int64_t placed_count = 0; // blocks that got the memory that a plan chose for them
  std::array<int64_t, kSources> alloc_distribution{};

  void reset_peak() {
    pinned.reset_peak();
    pinned_bytes.reset_peak();
    resident_bytes.reset_peak();
    paged_out_bytes.reset_peak();
    held_bytes.reset_peak();
    over_limit_bytes_peak = 0;
  }

  void reset_accumulated() {
    pinned.reset_accumulated();
    pinned_bytes.reset_accumulated();
    resident_bytes.reset_accumulated();
    paged_out_bytes.reset_accumulated();
    held_bytes.reset_accumulated();
    page_out_count = page_out_bytes = page_in_count = page_in_bytes = 0;
    compacted_count = compacted_bytes = 0;
    clean_count = adopted = out_of_memory_retries = out_of_memory_caught = 0;
    over_limit_count = 0;
    clean_violations = violations = 0;
    plans = planned_iterations = plan_departures = 0;
    copied_ahead_count = prefetch_count = placed_count = 0;
    alloc_distribution.fill(0);
  }
};

} // namespace torch::cuda::lms
