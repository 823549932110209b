// Ends iterations, and prints the way of each: copy (c), pack (k) or plan (p), in capitals once the
// trial is over. Arguments: the seconds that iterations take in each way, and if they are others,
// those of its second iteration behind a comma; "none" for the last one if the planner makes no
// such plan.

#include <torch/csrc/cuda/lms/follow/trial.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using torch::cuda::lms::Trial;

int main(int, char** arguments) {
  Trial trial;
  for (int k = 0; k < 11; ++k) {
    const Trial::Way way = trial.way();
    const auto index = static_cast<int>(way);
    std::putchar((trial.over() ? "CKP" : "ckp")[index]);
    if (!trial.over() && std::strcmp(arguments[1 + index], "none") == 0) {
      trial.no_plan();
    } else {
      const char* const second = std::strchr(arguments[1 + index], ',');
      const char* const seconds = second && k % 3 == 1 ? second + 1 : arguments[1 + index];
      trial.took(way, std::atof(seconds) + 0.001 * (k % 3));
    }
    // An iteration of another way, whose time has only become known now.
    trial.took(static_cast<Trial::Way>((index + 2) % 3), 0);
  }
}
