// What this machine has for GPUs beyond the devices themselves (cuda.h): driver, libraries, links. For people, not for
// decisions.
#pragma once

#include <string>
#include <vector>

namespace witan::cuda {

struct Software {
  std::string driver;       // "580.95.05"; empty: no driver is loaded
  std::string driver_cuda;  // the newest CUDA that the driver runs: "13.0"; empty likewise
  std::string built_with;   // CUDA of this program: "13.0"; empty in a build without
};
Software software();

// A library that is loaded at run time.
struct LibraryState {
  std::string name, purpose;  // "NCCL", "several GPUs"
  std::string path, version;  // empty where it cannot be loaded
  std::string missing;        // why it cannot be, and the way out
};
std::vector<LibraryState> libraries();  // none in a build without CUDA

// How `from` reaches the memory of `to`, another GPU.
struct Link {
  int from = 0, to = 0;
  bool peer = false;            // kernels and copies go straight there; else through the host's memory
  bool atomics = false;         // also atomic operations, as over NVLink
  double bytes_per_second = 0;  // one way, by copies of 256 MiB
};
Link measure_link(int from, int to);

}  // namespace witan::cuda
