#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace torch::cuda::lms::compat {

// A range of PyTorch's profiler, as torch.profiler.record_function() makes: it lasts as long as the
// object. Without a profiler, it costs one test.
class Range {
 public:
  Range() : function_(at::RecordScope::USER_SCOPE) {}

  // Whether anyone wants to know of the range. Otherwise begin() need not be called.
  bool wanted() const {
    return function_.isActive();
  }
  // A profiler that records shapes shows the values, too.
  void begin(const std::string& name, std::initializer_list<int64_t> values) {
    if (function_.needsInputs()) {
      const std::vector<c10::IValue> inputs(values.begin(), values.end());
      function_.before(
          name.c_str(), c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
    } else {
      function_.before(name.c_str());
    }
  }

 private:
  at::RecordFunction function_;
};

} // namespace torch::cuda::lms::compat
