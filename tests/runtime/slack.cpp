// Ends iterations, of which each line of the input has "part seconds failed" for one part; prints
// the parts that their plans used.

#include <torch/csrc/cuda/lms/follow/slack.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

int main(int, char** arguments) {
  struct Course {
    double seconds;
    bool failed;
  };
  std::map<int, Course> courses; // by part, in hundredths
  int part = 0;
  Course course{};
  while (std::cin >> part >> course.seconds >> course.failed) {
    courses[part] = course;
  }
  torch::cuda::lms::Slack slack;
  for (int k = std::atoi(arguments[1]); k > 0; --k) {
    const double now = slack.part();
    const auto hundredths = static_cast<int>(now * 100 + 0.5);
    const Course& found = courses.at(hundredths);
    slack.took(now, found.seconds, found.failed);
    slack.took(1, 0, true); // an iteration of another plan
    std::printf("%d ", hundredths);
  }
}
