// GPUs that need not be in this machine: their speed, memory and connections, and the time of collectives between them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/planner/speeds/ceilings.h"

namespace witan {

// Data sheet figures of SXM modules: matrix products without sparsity, links in one direction.
struct GpuModel {
  std::string_view name;         // the value of --gpu
  double bf16_flops, f32_flops;  // float16 is as fast as bfloat16
  double memory_bytes;           // capacity
  double memory_bytes_s;         // read and written
  double link_bytes_s;           // to other GPUs of its host
  bool multiplies_fp8 = false;   // by the kernels that there are: Hopper's
  double multiprocessors = 132;
};
const std::vector<GpuModel>& gpu_models();
std::string gpu_names();  // "a100, h100"
// In letters of either case. Throws ConfigError for an unknown name, with a suggestion.
const GpuModel& find_gpu(std::string_view name);
// The model that a device of this name is, "NVIDIA H200"; null: it is none of these.
const GpuModel* model_of_device(std::string_view name);

struct Cluster {
  GpuModel gpu;
  int gpus_per_host = 8;
  double link_bytes_s = 0;     // sent by a GPU to others of its host
  double network_bytes_s = 0;  // sent by a GPU to other hosts: one network adapter per GPU

  // The ceilings of large products and copies, which reach a share of the data sheet's figures. Throws ConfigError for
  // float64, which has none.
  Ceilings ceilings(const Load& load) const;
};

// The time of one rank's collectives, without waiting for peers and without latencies. Consecutive ranks share a host.
//   rings (all others)    a group within a host runs at the link's rate; one over several hosts at that of the adapters
//                         of its ranks of one host together, which NCCL uses in parallel, and never above the link's
//   all-to-all, rows      bytes that leave the host go at the adapter's rate, the others at the same time over links
//   send                  to neighbours: at the adapter's rate if any of them is on another host
class LinkClock {
 public:
  LinkClock(const Cluster& cluster, const Layout& layout, int rank);

  // `group`: the name of the group in the layout.
  double seconds(const std::string& group, const std::string& operation, double bytes) const;
  bool within_host(const std::string& group) const;

 private:
  // Of a group: its ranks, and those of them on the rank's host.
  struct Members {
    double all = 1, here = 1;
  };
  Members members_of(const std::string& group) const;

  const Cluster& cluster_;
  std::map<std::string, Members, std::less<>> groups_;
};

// Of ceilings that were measured on GPUs. What was not measured, connections and memory, is that of the model with
// their name; a GPU that is no known model is taken to be one whose figures lie by the measured ones as an H100's do.
Cluster host_of(const Ceilings& ceilings);

// The measured speeds; of ceilings without (they are of an older file) the typical ones.
GpuSpeeds speeds_of(const Ceilings& ceilings);

}  // namespace witan
