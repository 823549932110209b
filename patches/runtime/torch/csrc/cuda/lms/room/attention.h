#pragma once

namespace torch::cuda::lms {

// What the room needs to know about the guard: whether it watches operators. Blocks may only be
// moved when it does, because until then it is unknown what operators use.
class Attention {
 public:
  // Whether operators are only counted, because nothing has to be moved yet.
  virtual bool counting() const = 0;

  // Starts to watch.
  virtual void begin() = 0;

  // Whether blocks may be moved. The mutex must be held; can pause it.
  virtual bool settled() = 0;

 protected:
  ~Attention() = default;
};

} // namespace torch::cuda::lms
