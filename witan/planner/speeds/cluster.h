// Models and clusters of GPUs, which need not be in this machine: speed, memory and links, and the time of collectives
// between them.
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
  std::string_view name;         // value of --gpu
  double bf16_flops, f32_flops;  // float16 is as fast as bfloat16
  double memory_bytes;           // capacity
  double memory_bytes_s;         // read and written
  double link_bytes_s;           // to other GPUs of the host
  bool multiplies_fp8 = false;   // by the existing kernels, which are for Hopper
  double multiprocessors = 132;
  double host_bytes_s = 64e9;  // to the host's memory: PCIe 5.0
};
const std::vector<GpuModel>& gpu_models();
std::string gpu_names();  // "a100, h100"
// Ignores case. Throws ConfigError with a suggestion for an unknown name.
const GpuModel& find_gpu(std::string_view name);
// The model of a device with this name, such as "NVIDIA H200"; nullptr if no model has it.
const GpuModel* model_of_device(std::string_view name);

struct Cluster {
  GpuModel gpu;
  int gpus_per_host = 8;
  double link_bytes_s = 0;     // bytes/s sent by a GPU to others of its host
  double network_bytes_s = 0;  // bytes/s sent by a GPU to other hosts: one network adapter per GPU

  // The ceilings of large matrix products and copies, which reach a share of the data sheet's figures. Throws
  // ConfigError for float64, for which data sheets have none.
  Ceilings ceilings(const Load& load) const;
};

// The time of one rank's collectives, without waiting for peers and without latency. Consecutive ranks share a host.
//   rings (all others)    within a host at the link's rate; over several hosts at the sum of the adapters of its
//                         ranks on one host, which NCCL uses in parallel, and never above the link's rate
//   all-to-all, rows      bytes that leave the host at the adapter's rate, and the others over links at the same time
//   send                  to neighbours: at the adapter's rate if any of them is on another host
class LinkClock {
 public:
  LinkClock(const Cluster& cluster, const Layout& layout, int rank);

  // `group`: the group's name in the layout.
  double seconds(const std::string& group, const std::string& operation, double bytes) const;
  bool within_host(const std::string& group) const;

 private:
  // Sizes of a group: all its ranks, and those on this rank's host.
  struct Members {
    double all = 1, here = 1;
  };
  Members members_of(const std::string& group) const;

  const Cluster& cluster_;
  std::map<std::string, Members, std::less<>> groups_;
};

// The GPUs at hand as a cluster of one host, from ceilings measured on them. Links and memory, which were not measured,
// are those of the model with the same name; an unknown GPU is assumed to have an H100's, scaled by the measured
// figures.
Cluster host_of(const Ceilings& ceilings);

// The measured speeds, or the typical ones for ceilings from an older file, which has none.
GpuSpeeds speeds_of(const Ceilings& ceilings);

}  // namespace witan
