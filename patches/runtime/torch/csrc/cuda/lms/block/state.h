#pragma once

#include <c10/util/Exception.h>

namespace torch::cuda::lms {

// Where the bytes of a managed storage are.
//
//   Resident --> PagingOut --> PagedOut --> PagingIn --> Resident
//                    |                         |
//                    +--> Resident (undone)    +--> PagingOut (evicted again)
//                                              +--> PagedOut (undone)
//   any --> Freed
//
// In PagingOut, the block has device memory, and a copy is in flight. The same is true for
// PagingIn, except at its start: one thread allocates memory for the block then, and other threads
// that need the block wait. A block that a plan pages in stays in PagingIn until an operator uses
// it. A block that a plan copies to the host early is Resident, with a host copy.
enum class State { Resident, PagingOut, PagedOut, PagingIn, Freed };

inline const char* name_of(State state) {
  switch (state) {
    case State::Resident:
      return "resident";
    case State::PagingOut:
      return "paging out";
    case State::PagedOut:
      return "paged out";
    case State::PagingIn:
      return "paging in";
    case State::Freed:
      return "freed";
  }
  return "unknown";
}

inline bool allowed(State from, State to) {
  if (to == State::Freed) {
    return from != State::Freed;
  }
  switch (from) {
    case State::Resident:
      return to == State::PagingOut;
    case State::PagingOut:
      return to == State::PagedOut || to == State::Resident;
    case State::PagedOut:
      return to == State::PagingIn;
    case State::PagingIn:
      return to == State::Resident || to == State::PagingOut || to == State::PagedOut;
    case State::Freed:
      return false;
  }
  return false;
}

// A state that can only change along the arrows above. Any other change is a bug of the runtime,
// and throws c10::Error before any bytes are moved.
class StateMachine {
 public:
  explicit StateMachine(State initial) : state_(initial) {}

  State get() const {
    return state_;
  }

  bool is(State state) const {
    return state_ == state;
  }

  void to(State next) {
    TORCH_CHECK(
        allowed(state_, next),
        "LMS: a storage cannot go from ",
        name_of(state_),
        " to ",
        name_of(next));
    state_ = next;
  }

 private:
  State state_;
};

} // namespace torch::cuda::lms
