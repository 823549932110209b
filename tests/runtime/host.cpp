// Prints what the runtime reads about the host from the files in a root folder.

#include <torch/csrc/cuda/lms/host/host.cpp>

#include <cstdio>

int main(int, char** arguments) {
  namespace host = torch::cuda::lms::host;
  std::printf(
      "%zu %d\n",
      host::available_bytes(arguments[1]),
      host::node_of_device(arguments[2], arguments[1]));
}
