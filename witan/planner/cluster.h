// GPUs that need not be here: what they do in a second, how much memory they have, how they are connected, and how long
// exchanges between them take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/parallel/layout.h"
#include "witan/planner/ceilings.h"

namespace witan {

// Data sheets' figures of SXM modules: products without sparsity, links in one direction.
struct GpuModel {
  std::string_view name;  // as --gpu takes it
  double bf16_flops, f32_flops;
  double memory_bytes;    // that fit into it
  double memory_bytes_s;  // read and written
  double link_bytes_s;    // to other GPUs of its host
};
const std::vector<GpuModel>& gpu_models();
std::string gpu_names();  // "a100, h100"
// Throws ConfigError for a name that is none, with a suggestion.
const GpuModel& find_gpu(std::string_view name);

struct Cluster {
  GpuModel gpu;
  int gpus_per_host = 8;
  double link_bytes_s = 0;     // that a GPU sends to others of its host
  double network_bytes_s = 0;  // that it sends to other hosts: an adapter for each GPU

  // Of large products and copies, whose kernels reach a part of a data sheet's figures. Throws ConfigError for float64,
  // of which there are none.
  Ceilings ceilings(const Load& load) const;
};

// How long one rank's exchanges take, without waiting for peers and without latencies. Consecutive ranks share a host.
//   rings (all else)      a group within a host goes at the link's rate; one over several hosts at that of the adapters
//                         of its ranks of one host together, which NCCL uses side by side, and never above the link's
//   all-to-all, rows      what leaves the host goes at the adapter's rate, the rest beside it over links
//   send                  to neighbours: at the adapter's rate where any of them is on another host
class LinkClock {
 public:
  LinkClock(const Cluster& cluster, const Layout& layout, int rank) : cluster_(cluster), layout_(layout), rank_(rank) {}

  // `group`: its name, of the layout's.
  double seconds(const std::string& group, const std::string& operation, double bytes) const;

 private:
  std::vector<int> ranks_of(const std::string& group) const;
  int host_of(int rank) const { return rank / cluster_.gpus_per_host; }

  const Cluster& cluster_;
  const Layout& layout_;
  int rank_;
};

}  // namespace witan
