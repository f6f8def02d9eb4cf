#include <algorithm>
#include <cstdint>
#include <vector>

#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

constexpr size_t kMost = size_t{1} << 20;  // bytes; a larger memset is worth its latency
constexpr unsigned kThreads = 256, kMostBlocks = 64;

__global__ void __launch_bounds__(kThreads) fill_kernel(uint32_t* to, uint32_t word, uint32_t words) {
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < words; i += gridDim.x * kThreads) to[i] = word;
}

// Whether a memset writes few, whole and contiguous words.
bool fits(const cudaMemsetParams& memset) {
  const size_t bytes = memset.width * memset.elementSize;
  return memset.height == 1 && bytes <= kMost && bytes % sizeof(uint32_t) == 0 &&
         reinterpret_cast<uintptr_t>(memset.dst) % sizeof(uint32_t) == 0;
}

// The word that repeats an element of 1, 2 or 4 bytes.
uint32_t word_of(const cudaMemsetParams& memset) {
  if (memset.elementSize == 1) return (memset.value & 0xffu) * 0x01010101u;
  return memset.elementSize == 2 ? (memset.value & 0xffffu) * 0x00010001u : memset.value;
}

// Calls get(nodes, edges, &count) twice: without arrays it returns the count.
template <class Get>
std::vector<cudaGraphNode_t> neighbours(const Get& get) {
  size_t count = 0;
  check(get(nullptr, nullptr, &count), "counting a graph's edges");
  std::vector<cudaGraphNode_t> nodes(count);
  std::vector<cudaGraphEdgeData> edges(count);
  if (count > 0) check(get(nodes.data(), edges.data(), &count), "listing a graph's edges");
  return nodes;
}

void replace(cudaGraph_t graph, cudaGraphNode_t old, const cudaMemsetParams& memset) {
  const auto before = neighbours([&](cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, size_t* count) {
    return cudaGraphNodeGetDependencies(old, nodes, edges, count);
  });
  const auto after = neighbours([&](cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, size_t* count) {
    return cudaGraphNodeGetDependentNodes(old, nodes, edges, count);
  });
  check(cudaGraphDestroyNode(old), "taking a memset out of a graph");

  auto* to = static_cast<uint32_t*>(memset.dst);
  uint32_t word = word_of(memset), words = static_cast<uint32_t>(memset.width * memset.elementSize / sizeof(uint32_t));
  void* arguments[] = {&to, &word, &words};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(fill_kernel);
  kernel.gridDim = dim3(std::clamp((words + kThreads - 1) / kThreads, 1u, kMostBlocks));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t filling = nullptr;
  check(cudaGraphAddKernelNode(&filling, graph, before.data(), before.size(), &kernel), "adding a kernel to a graph");
  const std::vector<cudaGraphNode_t> from(after.size(), filling);
  check(cudaGraphAddDependencies(graph, from.data(), after.data(), nullptr, after.size()), "adding edges to a graph");
}

}  // namespace

void memsets_to_kernels(cudaGraph_t graph) {
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), "counting a graph's nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), "listing a graph's nodes");
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "looking at a graph's node");
    if (type != cudaGraphNodeTypeMemset) continue;
    cudaMemsetParams memset{};
    check(cudaGraphMemsetNodeGetParams(node, &memset), "looking at a memset");
    if (fits(memset)) replace(graph, node, memset);
  }
}

}  // namespace witan::cuda
