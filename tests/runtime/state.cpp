// Prints the allowed changes of a storage's state, one "from>to" per line.
#include <torch/csrc/cuda/lms/block/state.h>

#include <cstdio>

int main() {
  using torch::cuda::lms::State;
  const State states[] = {
      State::Resident, State::PagingOut, State::PagedOut, State::PagingIn, State::Freed};
  for (const State from : states) {
    for (const State to : states) {
      torch::cuda::lms::StateMachine machine(from);
      try {
        machine.to(to);
      } catch (const c10::Error&) {
        continue;
      }
      if (!machine.is(to)) {
        return 1;
      }
      std::printf("%s>%s\n", name_of(from), name_of(to));
    }
  }
  return 0;
}
