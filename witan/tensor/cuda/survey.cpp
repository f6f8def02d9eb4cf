#include <algorithm>
#include <fstream>
#include <functional>
#include <regex>

#include "witan/base/error.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/cuda/library.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::cuda {
namespace {

std::string cuda_version(int version) {  // 13010
  return version == 0 ? "" : cat(version / 1000, '.', version % 1000 / 10);
}
std::string library_version(int64_t version) {  // 130100
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

// "580.95.05" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  …", as the kernel's module says.
std::string module_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::smatch found;
  std::getline(file, line);
  return std::regex_search(line, found, std::regex(R"(\s(\d+\.\d+(\.\d+)?)\s)")) ? found[1].str() : "";
}

LibraryState state_of(const char* name, const char* purpose, const std::function<const Library&()>& open,
                      const std::function<int64_t(const Library&)>& version) {
  LibraryState state{.name = name, .purpose = purpose, .path = {}, .version = {}, .missing = {}};
  try {
    const Library& library = open();
    state.version = library_version(version(library));
    state.path = library.path();
  } catch (const DeviceError& error) {
    state.missing = error.what();
  }
  return state;
}

class PeerMemory {
 public:
  PeerMemory(int device, int64_t bytes) : device_(device), memory_(allocate(device, bytes)) {}
  ~PeerMemory() { release(device_, memory_); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  std::byte* get() const { return memory_; }

 private:
  int device_;
  std::byte* memory_;
};

int p2p(cudaDeviceP2PAttr which, int from, int to) {
  int value = 0;
  check(cudaDeviceGetP2PAttribute(&value, which, from, to), "asking for a link between GPUs");
  return value;
}

}  // namespace

Software software() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return {driver == 0 ? "" : module_version(), cuda_version(driver), cuda_version(runtime)};
}

std::vector<LibraryState> libraries() {
  return {state_of("cuBLASLt", "dense matrix products; without it a slow built-in kernel is used", cublaslt,
                   [](const Library& library) {
                     return static_cast<int64_t>(library.symbol<size_t()>("cublasLtGetVersion")());
                   }),
          state_of("cuDNN", "attention; without it Witan's own kernels are used", cudnn,
                   [](const Library& library) {
                     return static_cast<int64_t>(library.symbol<size_t()>("cudnnGetVersion")());
                   }),
          state_of("NCCL", "several GPUs", nccl, [](const Library& library) {
            int version = 0;
            library.symbol<int(int*)>("ncclGetVersion")(&version);
            return static_cast<int64_t>(version);
          })};
}

Link measure_link(int from, int to) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  constexpr int kCopies = 8;
  Link link{.from = from, .to = to};
  link.peer = p2p(cudaDevP2PAttrAccessSupported, from, to) != 0;
  link.atomics = p2p(cudaDevP2PAttrNativeAtomicSupported, from, to) != 0;
  const OnDevice on(from);
  if (link.peer && cudaDeviceEnablePeerAccess(to, 0) != cudaSuccess) cudaGetLastError();  // it was enabled before
  const PeerMemory source(from, kBytes), target(to, kBytes);
  const auto queue = make_queue(from);
  const auto stream = static_cast<cudaStream_t>(queue->native());
  auto seconds = time_calls(*queue, kCopies, [&] {
    check(cudaMemcpyPeerAsync(target.get(), to, source.get(), from, static_cast<size_t>(kBytes), stream),
          "copying between GPUs");
  });
  std::ranges::nth_element(seconds, seconds.begin() + kCopies / 2);
  link.bytes_per_second = static_cast<double>(kBytes) / seconds[kCopies / 2];
  return link;
}

}  // namespace witan::cuda
