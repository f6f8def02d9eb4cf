// What this machine has for GPUs in addition to the devices (cuda.h): driver, libraries, links. For display, not for
// decisions.
#pragma once

#include <string>
#include <vector>

namespace witan::cuda {

struct Software {
  std::string driver;       // "580.95.05"; empty: no driver is loaded
  std::string driver_cuda;  // the newest CUDA version that the driver supports: "13.0"; empty likewise
  std::string built_with;   // CUDA version of this program: "13.0"; empty without CUDA
};
Software software();

// A library that is loaded at run time.
struct LibraryState {
  std::string name, purpose;  // "NCCL", "several GPUs"
  std::string path, version;  // empty if it cannot be loaded
  std::string missing;        // why it cannot be loaded, and the fix
};
std::vector<LibraryState> libraries();  // none in a build without CUDA

// How GPU `from` accesses the memory of GPU `to`.
struct Link {
  int from = 0, to = 0;
  bool peer = false;            // peer access: kernels and copies go directly; else through host memory
  bool atomics = false;         // also atomic operations, as over NVLink
  double bytes_per_second = 0;  // one way, measured with copies of 256 MiB
};
Link measure_link(int from, int to);

}  // namespace witan::cuda
