#pragma once

#include <torch/csrc/cuda/lms/host/buffer.h>
#include <torch/csrc/cuda/lms/move/meter.h>
#include <torch/csrc/cuda/lms/stream/event.h>

#include <cstddef>

namespace torch::cuda::lms {

// The streams for the transfers of one device. Page-outs and page-ins run at the same time, each in
// their own order. Hashes are computed on a third stream, while earlier blocks are copied and
// queued compute runs, so that copies do not have to wait for them. The device must be current for
// every call.
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

  // Each function issues one copy per part of the buffer on its stream, and returns an event that
  // is complete when all of them are. Throws c10::Error if CUDA refuses; some of the copies may
  // have been issued then.
  EventRef page_out(const HostBuffer& host, const void* device, size_t bytes);
  EventRef page_in(void* device, const HostBuffer& host, size_t bytes);

  // How fast the two directions are, in bytes per second; 0 if not known yet.
  double out_rate() {
    return out_meter_.rate();
  }
  double in_rate() {
    return in_meter_.rate();
  }

  // The pool for events of this device.
  EventPool& events() {
    return events_;
  }

 private:
  cudaStream_t out_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t ahead_ = nullptr;
  Meter out_meter_;
  Meter in_meter_;
  EventPool events_;
};

} // namespace torch::cuda::lms
