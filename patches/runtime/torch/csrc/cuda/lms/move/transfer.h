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

  // Each function calls copy(stream), which issues a transfer on the stream, and returns an event
  // that is complete when the transfer is. Throws what copy() throws; some of the transfer may have
  // been issued then. `bytes` is what a copy would move in the same time; 0 if that is not known.
  template <typename Copy>
  EventRef page_out(size_t bytes, Copy copy) {
    return transfer(out_, out_meter_, bytes, copy);
  }
  template <typename Copy>
  EventRef page_in(size_t bytes, Copy copy) {
    return transfer(in_, in_meter_, bytes, copy);
  }

  // Issue one copy per part of the buffer. Throw c10::Error if CUDA refuses.
  static void
  copy_out(const HostBuffer& host, const void* device, size_t bytes, cudaStream_t stream);
  static void copy_in(void* device, const HostBuffer& host, size_t bytes, cudaStream_t stream);

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
  template <typename Copy>
  EventRef transfer(cudaStream_t stream, Meter& meter, size_t bytes, Copy copy) {
    meter.begins(stream, bytes);
    copy(stream);
    meter.ends(stream);
    return events_.record(stream);
  }

  cudaStream_t out_ = nullptr;
  cudaStream_t in_ = nullptr;
  cudaStream_t ahead_ = nullptr;
  Meter out_meter_;
  Meter in_meter_;
  EventPool events_;
};

} // namespace torch::cuda::lms
