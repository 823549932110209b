#pragma once

#include <torch/csrc/cuda/lms/codec/kind.h>

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace torch::cuda::lms {

class Pager;
struct Node;

// The operator guard. It brings the storages that an operator uses to the device, and keeps them
// there from the start of the operator to the end of the thread's outermost operator. Storages that
// operators of an autograd node use stay until the end of the node.
class Guard {
 public:
  enum class Kind {
    // Does not access any bytes itself: a view, a metadata operator, or an operator that only calls
    // others, which are guarded themselves.
    Transparent,
    // Calls other operators, but looks at the addresses of its inputs, too.
    Composite,
    // May use the addresses of everything that it has used, until its end.
    Opaque,
    // An autograd node, including its hooks. Between its operators, C++ code reads addresses of
    // what they use.
    Node,
    // Compiled code that consists of operators and launches, which are guarded one by one. If a
    // node calls it, nothing reads addresses of what it uses until it returns.
    Compiled,
  };
  struct Input {
    c10::StorageImpl* storage;
    bool write;
    codec::Kind kind = codec::Kind::None; // of the tensor's data; None if it is not known
  };
  using Inputs = c10::SmallVector<Input, 8>;

  // Starts and stops the callbacks that tell the guard about operators (observer.cpp). The mutex
  // must be held.
  static void install();
  static void remove();

  // Called when an operator of this thread begins, and when it ends. Neither throws. `lasting` says
  // that the name stays valid until the process ends.
  static void begin(Kind kind, const char* name, bool lasting = false);
  static void end();

  // Brings what the operator uses to the device and pins it. Does not throw: a storage that could
  // not be paged in throws when it is accessed, or at the next allocation.
  static void inputs(const Inputs& inputs, bool collective);

  // Whether what this thread's operators use stays until the end of an autograd node. In a node,
  // this includes views, because the code that makes one may read its address. An operator whose
  // grad mode differs from that of its node belongs to a pass of its own, for example that of a
  // checkpoint. The tensors of such a pass do not have to fit on the device together.
  static bool in_node();

  // node_inputs() is called with the inputs of a node. node_hooks() is called when the node's
  // function has ended and post hooks of others follow, such as those of DistributedDataParallel's
  // reducer. Such hooks keep what they use and look at it again between operators, so it stays on
  // the device, together with what the node used.
  static void node_inputs(const Inputs& inputs);
  static void node_hooks();

  // ends_node() returns whether the frame that is about to end is a node. A node that begins takes
  // over the pins that nodes of other streams have left for it, and a node that ends leaves pins of
  // what it used. See Crossing.
  static bool ends_node();
  static void node_arrives(const Node& node);
  static void node_leaves(const Node& node);

  // Whether the outputs of the operator that is about to end are of interest.
  static bool wants_outputs();
  static void outputs(const Inputs& outputs);

  // Whether this is a new storage that LMS will manage. Can be called without the mutex, because no
  // other thread has seen a new storage. All other storages that are large enough are inputs and
  // already have their blocks. Another thread may be adopting smaller ones at this moment.
  static bool fresh(const Input& output);

  // Called when the capture of a graph begins in this thread's operator, a compiled region. What
  // the operator uses stays on the device, because the graph replays addresses that no operator
  // inside it shows. The mutex must be held.
  static void keep_pinned(Pager& pager);

  // Called when an operator is about to end. Tells the room if a request of the operator for memory
  // failed and the operator went on without it, as cuDNN's convolutions do by choosing an algorithm
  // that needs less; and if the operator failed.
  static void check_refused();

  // Treats the following code of this thread as one operator with these inputs. For code that
  // accesses data without operators. The name must stay valid until the process ends. Throws
  // c10::OutOfMemoryError.
  static void begin_region(const char* name, const Inputs& inputs);
  static void end_region();

  // Called instead of end_region() if the code has failed. The reason may be that the device had no
  // memory for something that is not PyTorch's.
  static void end_failed_region();

  // Called when Compiled code begins and ends. If an autograd node has called it, the node's inputs
  // need not stay on the device meanwhile. If begin_compiled() returns true, code that reads
  // addresses gets what the compiled code returns: end_compiled() has to be called with it, and it
  // stays until the node ends.
  static bool begin_compiled();
  static void end_compiled(const Inputs& outputs);

  // Makes the storage's address valid. Inside an operator of this thread, it is valid until the
  // operator ends, for writing only if `write` is set. Outside of operators, and with `lasting`, it
  // is valid for writing, too, until lms_release_address().
  static void address_taken(c10::StorageImpl& storage, bool write, bool lasting = false);

  // Whether this thread's operators have pinned the block and, if `write` is set, declared a write.
  // Can be called without the mutex, because blocks that the thread has pinned are not deleted.
  static bool has_pinned(const void* block, bool write);
};

} // namespace torch::cuda::lms
