#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torch::cuda::lms {

// The reasons why a block has to stay on its device.
enum class Reason {
  Operator, // in use by operators or an autograd node; counted
  Lms, // LMS itself is at work on it; counted
  Holder, // held by torch.cuda.lms.resident(); counted
  Address, // its address was exported, or exclude() was called: until release()
  Graph, // a CUDA graph replays its address: until release()
  Hook, // a hook of an autograd node used it: until release()
  Collective, // in use by a collective that may still run: until another operator uses the block
};
constexpr size_t kReasons = 7;

// The reasons for which one block has to stay. The block may be moved when there are none.
class Residency {
 public:
  void add(Reason reason) {
    uint32_t& count = counts_[static_cast<size_t>(reason)];
    count = counted(reason) ? count + 1 : 1;
  }

  // Returns false if this was not a reason to stay.
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

  // Whether somebody refers to the block who needs it even after its storage was freed.
  bool referred() const {
    return has(Reason::Operator) || has(Reason::Lms);
  }

  bool any() const {
    for (const uint32_t count : counts_) {
      if (count > 0) {
        return true;
      }
    }
    return false;
  }

  // Whether this is the only reason, and it was added once.
  bool only(Reason reason) const {
    return none_but(reason) && counts_[static_cast<size_t>(reason)] == 1;
  }

  // Whether this is the only reason, however often it was added.
  bool none_but(Reason reason) const {
    for (size_t i = 0; i < kReasons; ++i) {
      if (counts_[i] > 0 && i != static_cast<size_t>(reason)) {
        return false;
      }
    }
    return has(reason);
  }

  // Whether the block stays until the program releases it, however long that takes.
  bool lasting() const {
    return has(Reason::Holder) || released_by_user();
  }

  // Whether there is a reason that torch.cuda.lms.release() removes.
  bool released_by_user() const {
    return has(Reason::Address) || has(Reason::Graph) || has(Reason::Hook);
  }

  // The lasting ones of the reasons.
  Residency lasting_part() const {
    Residency part;
    for (const Reason reason : {Reason::Holder, Reason::Address, Reason::Graph, Reason::Hook}) {
      part.counts_[static_cast<size_t>(reason)] = counts_[static_cast<size_t>(reason)];
    }
    return part;
  }

  // Calls f(reason) for each reason, as often as it counts.
  template <class F>
  void each(F f) const {
    for (size_t i = 0; i < kReasons; ++i) {
      for (uint32_t n = 0; n < counts_[i]; ++n) {
        f(static_cast<Reason>(i));
      }
    }
  }

 private:
  static bool counted(Reason reason) {
    return reason == Reason::Operator || reason == Reason::Lms || reason == Reason::Holder;
  }

  std::array<uint32_t, kReasons> counts_{};
};

} // namespace torch::cuda::lms
