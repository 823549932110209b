#pragma once

#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

class Pager;

// The statistics of one device as a flat list of named numbers, the keys of
// torch.cuda.memory_stats() first. The order is the same in every call.
size_t report_size();
const char* report_name(size_t index); // null past the end
void report(Pager& pager, int64_t* values); // report_size() numbers; mutex held

} // namespace torch::cuda::lms
