// Ends iterations, and prints for each whether its plan had places: yes (p) or no (n). Arguments:
// the seconds that iterations take without places and with them, in which iterations requests fail
// without them (x), "none" if there are no places, and how each iteration moves blocks: it copies
// (c), which happens to take 0.7 of the time (f), or it compresses, which takes half of it (z), or
// 0.7 with places (y). Behind a capital letter, this way is kept.

#include <torch/csrc/cuda/lms/follow/placing.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using torch::cuda::lms::Placing;
using torch::cuda::lms::Trial;

int main(int, char** arguments) {
  Placing placing;
  for (int k = 0; arguments[5][k] != 0; ++k) {
    const bool places = placing.wanted();
    std::putchar(places ? 'p' : 'n');
    if (places && std::strcmp(arguments[4], "none") == 0) {
      placing.none();
      continue;
    }
    const int letter = std::tolower(arguments[5][k]);
    const bool compresses = letter == 'z' || letter == 'y';
    const Trial::Way way = compresses ? Trial::Way::Plan : Trial::Way::Copy;
    const bool longer = letter == 'f' || (letter == 'y' && places);
    const double share = longer ? 0.7 : compresses ? 0.5 : 1;
    const bool fails = !places && arguments[3][k] == 'x';
    const double seconds = std::atof(arguments[places ? 2 : 1]) * share + 0.001 * (k % 3);
    // Plans are of another kind exactly when the answer changes.
    if (placing.took(way, seconds, places, fails) != (placing.wanted() != places)) {
      std::putchar('!');
    }
    const bool before = placing.wanted();
    if (std::isupper(arguments[5][k]) && placing.doubt(way) != (placing.wanted() != before)) {
      std::putchar('!');
    }
  }
}
