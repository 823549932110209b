#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Facts about the machine's host memory, read from /proc and /sys. `root` is prepended to these
// paths; tests pass a folder.
namespace torch::cuda::lms::host {

constexpr size_t kHugePage = size_t(2) << 20; // bytes

// How many bytes the process can still allocate before the machine, or the process's memory cgroup
// (the limit of a container), runs out of memory and the kernel kills a process.
size_t available_bytes(const std::string& root = "");

// The NUMA node next to a PCI device ("0000:18:00.0"); -1 if unknown.
int node_of_device(const std::string& bus_id, const std::string& root = "");

// Number of NUMA nodes; at least 1.
size_t nodes();

// Asks the kernel to place the pages of the range on this node if possible.
void prefer_node(void* data, size_t bytes, int node);

// How many bytes of the range are on each node. Looks at one page in every 2 MiB.
std::vector<size_t> bytes_by_node(const char* data, size_t bytes);

} // namespace torch::cuda::lms::host
