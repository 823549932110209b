#pragma once

namespace torch::cuda::lms {

// What making room asks of the guard: whether it looks at operators. Blocks may only move once it
// does, because what operators use is not known before.
class Attention {
 public:
  // Operators are only counted: nothing needs to move yet.
  virtual bool counting() const = 0;

  // Looks from now on.
  virtual void begin() = 0;

  // Whether blocks may move. With the mutex held; can pause it.
  virtual bool settled() = 0;

 protected:
  ~Attention() = default;
};

} // namespace torch::cuda::lms
