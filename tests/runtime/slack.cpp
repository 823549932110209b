// Ends iterations, and prints the parts that their plans used. Arguments: the number of iterations,
// and "part seconds failed" for each part.

#include <torch/csrc/cuda/lms/follow/slack.h>

#include <cstdio>
#include <cstdlib>
#include <map>

int main(int count, char** arguments) {
  struct Course {
    double seconds;
    bool failed;
  };
  std::map<int, Course> courses; // by part, in thousandths
  for (int k = 2; k < count; ++k) {
    int part = 0;
    int failed = 0;
    double seconds = 0;
    if (std::sscanf(arguments[k], "%d %lf %d", &part, &seconds, &failed) != 3) {
      return 1;
    }
    courses[part] = {seconds, failed != 0};
  }
  torch::cuda::lms::Slack slack;
  for (int k = std::atoi(arguments[1]); k > 0; --k) {
    const double now = slack.part();
    const auto thousandths = static_cast<int>(now * 1000 + 0.5);
    const Course& found = courses.at(thousandths);
    slack.took(now, found.seconds, found.failed);
    slack.took(1, 0, true); // an iteration of another plan
    std::printf("%d ", thousandths);
  }
}
