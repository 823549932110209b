// Adds transfers, and prints how fast they were, and what is known if small ones say nothing.
// Arguments: bytes and seconds, in turn; behind "other", those of transfers that move bytes in
// another way.

#include <torch/csrc/cuda/lms/move/rates.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int count, char** arguments) {
  torch::cuda::lms::Rates rates[2];
  int way = 0;
  for (int k = 1; k < count; ++k) {
    if (std::strcmp(arguments[k], "other") == 0) {
      way = 1;
    } else if (k + 1 < count) {
      const auto bytes = static_cast<size_t>(std::atoll(arguments[k]));
      rates[way].add(bytes, std::atof(arguments[++k]));
    }
  }
  std::printf("%.17g %.17g", rates[0].median_or(rates[1]), rates[0].known());
}
