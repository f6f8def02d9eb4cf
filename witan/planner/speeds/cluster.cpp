#include "witan/planner/speeds/cluster.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/parallel/groups.h"

namespace witan {
namespace {

// Shares of the data sheet's figures that are reached: a matrix product of 8192^3 in bfloat16 reaches 788 of an H200's
// 989 TFLOP/s, a copy 4.3 of 4.8 TB/s.
constexpr double kReachedFlops = 0.8, kReachedBytes = 0.9;
constexpr double kReachedLink = 0.75;  // NCCL moves 285 to 340 of 450 GB/s

bool exchanges_pairs(const std::string& operation) {
  return operation.starts_with("all_to_all") || operation.ends_with("_rows") || operation == "exchange_pieces";
}

}  // namespace

const std::vector<GpuModel>& gpu_models() {
  constexpr double T = 1e12, G = 1e9;
  static const std::vector<GpuModel> models = {
      {"a100-40gb", 312 * T, 19.5 * T, 40 * G, 1.555 * T, 300 * G, false, 108, 32 * G},
      {"a100", 312 * T, 19.5 * T, 80 * G, 2.039 * T, 300 * G, false, 108, 32 * G},
      {"h100", 989 * T, 67 * T, 80 * G, 3.35 * T, 450 * G, true},
      {"h200", 989 * T, 67 * T, 141 * G, 4.8 * T, 450 * G, true},
      {"b200", 2250 * T, 75 * T, 180 * G, 7.7 * T, 900 * G, false, 148},
  };
  return models;
}

std::string gpu_names() {
  std::string all;
  for (const GpuModel& one : gpu_models()) all += cat(all.empty() ? "" : ", ", one.name);
  return all;
}

const GpuModel& find_gpu(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::vector<std::string> names;
  for (const GpuModel& one : gpu_models()) {
    if (one.name == lower) return one;
    names.emplace_back(one.name);
  }
  throw ConfigError(
      cat("--gpu ", clipped(name), " is not known", suggestion(lower, names), "; there are ", gpu_names()));
}

const GpuModel* model_of_device(std::string_view name) {
  // Compare whole words: a GH200 is not an H200.
  std::set<std::string> words;
  std::string word;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else
      words.insert(std::exchange(word, {}));
  words.insert(word);
  const auto has = [&](std::string_view part) { return words.contains(std::string(part)); };
  if (has("a100") && has("40gb")) return &find_gpu("a100-40gb");
  for (const GpuModel& one : gpu_models())
    if (has(one.name)) return &one;
  return nullptr;
}

Ceilings Cluster::ceilings(const Load& load) const {
  require<ConfigError>(
      load.dtype != "float64", "--gpu ", gpu.name,
      ": the data sheet has no speed for dtype = float64; use float32 or bfloat16, or leave --gpu out");
  Ceilings ceilings;
  ceilings.load = load;
  ceilings.load.gpu = gpu.name;
  ceilings.fma_flops =
      load.ranks * kReachedFlops * (size_of(dtype_from_name(load.dtype)) == 2 ? gpu.bf16_flops : gpu.f32_flops);
  ceilings.f32_flops = load.ranks * kReachedFlops * gpu.f32_flops;
  ceilings.copy_bytes = kReachedBytes * gpu.memory_bytes_s;
  ceilings.speeds = typical_speeds(gpu, size_of(dtype_from_name(load.dtype)));
  return ceilings;
}

LinkClock::LinkClock(const Cluster& cluster, const Layout& layout, int rank) : cluster_(cluster) {
  const auto host_of = [&](int of) { return of / cluster.gpus_per_host; };
  const auto add = [&](const std::string& group, const std::vector<int>& ranks) {
    const auto here = std::ranges::count_if(ranks, [&](int other) { return host_of(other) == host_of(rank); });
    groups_.emplace(group, Members{static_cast<double>(ranks.size()), static_cast<double>(here)});
  };
  add("embedding", layout.embedding_ranks(rank));
  add(kExpertsOfHost, layout.expert_ranks_of_host(rank));
  add(kExpertsBetweenHosts, layout.expert_ranks_between_hosts(rank));
  for (const Axes& axes : layout.group_axes()) add(describe(axes), layout.mesh().ranks(rank, axes));
}

LinkClock::Members LinkClock::members_of(const std::string& group) const {
  const auto known = groups_.find(group);
  return known == groups_.end() ? Members() : known->second;
}

bool LinkClock::within_host(const std::string& group) const {
  const Members members = members_of(group);
  return members.here == members.all;
}

double LinkClock::seconds(const std::string& group, const std::string& operation, double bytes) const {
  const auto [all, here] = members_of(group);
  const double link = kReachedLink * cluster_.link_bytes_s, network = cluster_.network_bytes_s;
  if (here == all) return bytes / link;
  if (exchanges_pairs(operation)) {
    const double leaves = bytes * (all - here) / (all - 1);
    return std::max(leaves / network, (bytes - leaves) / link);
  }
  return bytes / (operation == "send" ? std::min(network, link) : std::min(here * network, link));
}

Cluster host_of(const Ceilings& ceilings) {
  Cluster host;
  if (const GpuModel* model = model_of_device(ceilings.load.gpu)) {
    host.gpu = *model;
  } else {
    const GpuModel& like = find_gpu("h100");
    const Ceilings typical = Cluster{like}.ceilings({"bfloat16", 1, 1});
    const double flops = ceilings.fma_flops / ceilings.load.ranks / typical.fma_flops;
    host.gpu = {"",
                flops * like.bf16_flops,
                flops * like.f32_flops,
                like.memory_bytes,
                ceilings.copy_bytes / typical.copy_bytes * like.memory_bytes_s,
                like.link_bytes_s};
  }
  host.gpus_per_host = ceilings.load.ranks;
  host.link_bytes_s = host.gpu.link_bytes_s;
  host.network_bytes_s = host.gpu.link_bytes_s;  // never used, as there is no other host
  return host;
}

GpuSpeeds speeds_of(const Ceilings& ceilings) {
  if (ceilings.speeds) return *ceilings.speeds;
  return typical_speeds(host_of(ceilings).gpu, static_cast<int64_t>(size_of(dtype_from_name(ceilings.load.dtype))));
}

}  // namespace witan
