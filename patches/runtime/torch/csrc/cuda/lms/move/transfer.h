#pragma once

#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>

namespace torch::cuda::lms {

// The streams of one device's transfers: page-outs and page-ins run at the same
// time, each in order. Blocks are hashed on a third stream, while earlier ones are
// copied and beside the compute that is queued, so that the link need not wait for
// it. The device must be current for every call.
class Transfer {
 public:
  Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  cudaStream_t out() const {
    return out_;
  }
  cudaStream_t in() const {
    return in_;
  }
  cudaStream_t ahead() const {
    return ahead_;
  }

  // Each issues a copy for every part of the buffer behind what its stream
  // already waits for, and returns the event of their end. Throws c10::Error when
  // CUDA refuses; some of the copies may have been issued then.
  EventRef page_out(const HostBuffer& host, const void* device, size_t bytes);
  EventRef page_in(void* device, const HostBuffer& host, size_t bytes);

  // An event for what is issued on a stream until now.
  EventPool& events() {
    return events_;
  }

 private:
  cudaStream_t out_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t ahead_ = nullptr;
  EventPool events_;
};

} // namespace torch::cuda::lms
