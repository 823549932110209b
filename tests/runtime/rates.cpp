// Adds transfers, and prints how fast they were. Arguments: bytes and seconds, in turn.

#include <torch/csrc/cuda/lms/move/rates.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  torch::cuda::lms::Rates rates;
  for (int k = 1; k + 1 < count; k += 2) {
    rates.add(static_cast<size_t>(std::atoll(arguments[k])), std::atof(arguments[k + 1]));
  }
  std::printf("%.17g", rates.median());
}
