#pragma once

#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

class Pager;

// The statistics of one device as a flat list of named numbers. The keys of
// torch.cuda.memory_stats() come first. The order is the same in every call.
size_t report_size();
const char* report_name(size_t index); // null if the index is too large
void report(Pager& pager, int64_t* values); // sets report_size() numbers; the mutex must be held

} // namespace torch::cuda::lms
