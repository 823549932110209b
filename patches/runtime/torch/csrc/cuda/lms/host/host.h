#pragma once

#include <cstddef>
#include <string>
#include <vector>

// What the machine has of host memory, read from /proc and /sys. `root` stands
// in front of these paths; tests put a folder there.
namespace torch::cuda::lms::host {

constexpr size_t kHugePage = size_t(2) << 20; // bytes

// Bytes that the process can still take before the machine, or the memory
// cgroup that it is in (a container's limit), has to kill something.
size_t available_bytes(const std::string& root = "");

// The NUMA node next to a PCI device ("0000:18:00.0"), or -1 when unknown.
int node_of_device(const std::string& bus_id, const std::string& root = "");

// How many NUMA nodes there are; at least 1.
size_t nodes();

// Asks the kernel to place pages of the range on the node, if it can.
void prefer_node(void* data, size_t bytes, int node);

// Bytes of the range on each node, judged by one page in each 2 MiB.
std::vector<size_t> bytes_by_node(const char* data, size_t bytes);

} // namespace torch::cuda::lms::host
