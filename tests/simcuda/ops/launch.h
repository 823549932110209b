// One operator's use of the simulated device: its stream, the memory that it touches, the order.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace simops {

class Launch {
 public:
  // The operator runs on the current stream of the device.
  Launch(const std::string& name, c10::Device device);

  // The operator uses the tensor's memory, which must be there.
  void use(const at::Tensor& tensor, bool write);

  // The operator gave the tensor, which it uses, other memory: an output that it resized.
  void moved(const at::Tensor& tensor);

  // Call when every output has its memory: this is where a kernel would be launched. From use() to
  // here no tensor may have moved. Records the accesses for the race checker.
  void record();

 private:
  struct Use {
    at::Tensor tensor;
    char* data; // of its storage
    size_t offset, size; // bytes
    bool write;
  };

  void begin();

  const std::string& name_;
  const c10::Device device_;
  void* const stream_;
  std::vector<Use> uses_;
};

// Follows the caching allocator from the first operator on: memory that went back to it is no
// longer accessible, although its segment is still allocated on the device.
void follow_allocator();

} // namespace simops
