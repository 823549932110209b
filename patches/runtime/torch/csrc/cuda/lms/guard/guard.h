#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace torch::cuda::lms {

class Pager;
struct Node;

// The operator guard: from the start of an operator to the end of the outermost
// one of its thread, the storages it uses are on the device and stay there; and
// what the operators of one autograd node use, to the end of that node.
class Guard {
 public:
  enum class Kind {
    // Touches no bytes itself: a view, a metadata operator, or one that is only
    // made of other operators, each of which is guarded by itself.
    Transparent,
    // Made of other operators, but looks at its inputs' addresses, too.
    Composite,
    // May have the address of everything that it uses, until its end.
    Opaque,
    // An autograd node, hooks included: between its operators C++ reads addresses of what they use.
    Node,
  };
  struct Input {
    c10::StorageImpl* storage;
    bool write;
  };
  using Inputs = c10::SmallVector<Input, 8>;

  // Starts and ends what tells the guard of operators (observer.cpp), with the
  // mutex held.
  static void install();
  static void remove();

  // An operator of this thread begins, and ends. Neither throws. A name may be
  // lasting: valid for as long as the process lives.
  static void begin(Kind kind, const char* name, bool lasting = false);
  static void end();

  // What the operator uses is brought to the device and pinned. Does not throw:
  // what could not be brought throws when it is accessed, or at the next
  // allocation.
  static void inputs(const Inputs& inputs, bool collective);

  // Whether what this thread's operators use stays until the end of an autograd node. Views count
  // then, too: who makes one in a node may read its address. An operator in another grad mode than
  // its node's is part of a pass of its own, such as a checkpoint's, whose tensors need not fit
  // together.
  static bool in_node();

  // What a node was given. The second: its function has ended, and post hooks of others follow,
  // such as those of DistributedDataParallel's reducer. They keep what they use, and look at it
  // again between operators: it stays on the device, with what the node used.
  static void node_inputs(const Inputs& inputs);
  static void node_hooks();

  // Whether what is about to end is a node. A node that begins takes over the pins that nodes of
  // other streams have left for it; one that ends leaves pins of what it used. See Crossing.
  static bool ends_node();
  static void node_arrives(const Node& node);
  static void node_leaves(const Node& node);

  // Whether the operator that is about to end should say what it made.
  static bool wants_outputs();
  static void outputs(const Inputs& outputs);

  // Whether a storage that LMS will manage was made just now. Without the mutex:
  // nobody else has seen it. The others that are large enough are inputs, and
  // have their blocks; smaller ones may get theirs from another thread at this
  // moment.
  static bool fresh(const Input& output);

  // A graph's capture begins in this thread's operator, a compiled region: what
  // it uses stays on the device, because the graph replays addresses that no
  // operator inside shows. With the mutex held.
  static void keep_pinned(Pager& pager);

  // An operator is about to end. Tells the room if it was refused memory and goes on, as cuDNN's
  // convolutions do with an algorithm that needs less; and if it failed.
  static void check_refused();

  // Treats what follows in this thread as one operator that may write all these
  // storages. For code that reaches data without operators (torch.compile).
  // Throws c10::OutOfMemoryError.
  static void begin_region(c10::StorageImpl* const* storages, size_t count);
  static void end_region();

  // Makes the storage's address valid. In an operator of this thread: until that
  // ends, to write or only to read. Outside of one: until lms_release_address(), to
  // write, too.
  static void address_taken(c10::StorageImpl& storage, bool write);

  // Whether this thread's operators have pinned the block, and know of a write.
  // Without the mutex: what they have pinned does not go away meanwhile.
  static bool has_pinned(const void* block, bool write);
};

} // namespace torch::cuda::lms
