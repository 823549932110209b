// Ends iterations, and prints the parts that their plans used. Arguments: the number of iterations,
// and "part failed seconds..." for each part; its iterations take these numbers of seconds in turn.

#include <torch/csrc/cuda/lms/follow/slack.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <vector>

int main(int count, char** arguments) {
  struct Course {
    int failed = 0; // 2: there is no plan; more: requests fail after so many iterations
    std::vector<double> seconds;
    size_t iterations = 0;
  };
  std::map<int, Course> courses; // by part, in thousandths
  for (int k = 2; k < count; ++k) {
    std::istringstream words(arguments[k]);
    int part = 0;
    words >> part;
    Course& course = courses[part];
    words >> course.failed;
    for (double seconds = 0; words >> seconds;) {
      course.seconds.push_back(seconds);
    }
    if (course.seconds.empty()) {
      return 1;
    }
  }
  torch::cuda::lms::Slack slack;
  for (int k = std::atoi(arguments[1]); k > 0; --k) {
    const double now = slack.part();
    const auto thousandths = static_cast<int>(now * 1000 + 0.5);
    Course& found = courses.at(thousandths);
    if (found.failed == 2) {
      slack.no_plan();
    } else {
      const double seconds = found.seconds[found.iterations++ % found.seconds.size()];
      const auto from = static_cast<size_t>(found.failed);
      slack.took(now, seconds, found.failed == 1 || (found.failed > 2 && found.iterations > from));
    }
    slack.took(1, 0, true); // an iteration of another plan
    std::printf("%d ", thousandths);
  }
}
