#pragma once

#include <torch/csrc/cuda/lms/block/block.h>
#include <torch/csrc/cuda/lms/stream/timeline.h>

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace torch::cuda::lms {

// Work of other streams on memory that has gone back to the native allocator. The program orders
// its own allocations on the memory's home stream after this work, but it does not know when LMS
// allocates the memory for a page-in. Used under the LMS mutex, with the device current.
class Strays {
 public:
  // Notes the work of other streams on the block's memory, which is about to go back. Uses of
  // record_stream() are left out, because the native allocator waits for them itself. Throws
  // c10::Error.
  void leave(const Block& block, bool captured);

  // Makes a stream wait for the strays in memory of this home stream, or of an unknown one.
  // The stream of all page-ins waits once for each. Throws c10::Error.
  void block(cudaStream_t home, cudaStream_t stream, bool page_ins);

  // Forgets work that has ended, and adds the timelines of the other work to the set.
  void collect(std::set<const Timeline*>& needed);

 private:
  struct Stray {
    std::optional<c10::cuda::CUDAStream> home;
    Timeline* timeline;
    uint64_t position;
    bool in_waits; // the stream of all page-ins waits for it

    // Whether its memory is that of this home stream, or may be.
    bool of_home(cudaStream_t stream) const {
      return !home || home->stream() == stream;
    }
    EventRef end() const;
  };

  std::vector<Stray> strays_; // for each home and stream, the last one
};

} // namespace torch::cuda::lms
