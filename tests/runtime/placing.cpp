// Ends iterations, and prints for each whether its plan had places: yes (p) or no (n). Arguments:
// the seconds that iterations take without places and with them, whether requests fail without
// them, and "none" if there are no places.

#include <torch/csrc/cuda/lms/follow/placing.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using torch::cuda::lms::Placing;

int main(int, char** arguments) {
  Placing placing;
  for (int k = 0; k < 9; ++k) {
    const bool places = placing.wanted();
    std::putchar(places ? 'p' : 'n');
    if (places && std::strcmp(arguments[4], "none") == 0) {
      placing.none();
      continue;
    }
    const double seconds = std::atof(arguments[places ? 2 : 1]);
    const bool fails = !places && std::atoi(arguments[3]) != 0 && k > 1;
    // Plans are of another kind exactly when the answer changes.
    if (placing.took(seconds + 0.001 * (k % 3), places, fails) != (placing.wanted() != places)) {
      std::putchar('!');
    }
  }
}
