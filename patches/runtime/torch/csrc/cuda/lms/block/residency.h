#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// Why a block has to stay on its device.
enum class Reason {
  Operator, // operators, or an autograd node, use it now; counted
  Holder, // torch.cuda.lms.resident(); counted
  Address, // its address was handed out, or exclude(): until release()
  Graph, // a CUDA graph replays its address: until release()
  Hook, // a hook of an autograd node used it: until release()
  Collective, // used by a collective, which runs on: until another operator uses it
};
constexpr size_t kReasons = 6;

// The one answer to whether a block may move: it may when there is no reason to stay.
class Residency {
 public:
  void add(Reason reason) {
    uint32_t& count = counts_[static_cast<size_t>(reason)];
    count = counted(reason) ? count + 1 : 1;
  }

  // False when that was no reason.
  bool remove(Reason reason) {
    uint32_t& count = counts_[static_cast<size_t>(reason)];
    if (count == 0) {
      return false;
    }
    --count;
    return true;
  }

  bool has(Reason reason) const {
    return counts_[static_cast<size_t>(reason)] > 0;
  }

  bool any() const {
    for (const uint32_t count : counts_) {
      if (count > 0) {
        return true;
      }
    }
    return false;
  }

  // Whether it stays until the program says otherwise, however long that takes.
  bool lasting() const {
    return has(Reason::Holder) || released_by_user();
  }

  // Whether it has a reason that torch.cuda.lms.release() ends.
  bool released_by_user() const {
    return has(Reason::Address) || has(Reason::Graph) || has(Reason::Hook);
  }

 private:
  static bool counted(Reason reason) {
    return reason == Reason::Operator || reason == Reason::Holder;
  }

  std::array<uint32_t, kReasons> counts_{};
};

} // namespace torch::cuda::lms
