#include "witan/cli/train/job.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "witan/base/threads/threads.h"
#include "witan/cli/train/planning.h"
#include "witan/comm/processes/launch.h"
#include "witan/planner/meta_rank.h"
#include "witan/tensor/arena.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

// A process of several, but for the first, is heard only if it fails.
class Silence {
 public:
  Silence() : nowhere_(std::fopen("/dev/null", "w")) { require<IoError>(nowhere_ != nullptr, "cannot open /dev/null"); }
  ~Silence() { std::fclose(nowhere_); }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

  Context context(Context as) const {
    as.out = as.err = nowhere_;
    return as;
  }

 private:
  std::FILE* nowhere_;
};

}  // namespace

ExitCode run_process(Context& context, const std::optional<Launch>& launch,
                     const std::function<ExitCode(Context&)>& body) {
  if (!launch || launch->rank == 0) return body(context);
  const Silence silence;
  Context quiet = silence.context(context);
  try {
    return body(quiet);
  } catch (const ConfigError& error) {
    const std::string what = error.what();  // which may say of itself whose it is
    throw ConfigError(what.starts_with("rank ") ? what
                                                : cat("process ", launch->rank, " of ", launch->size, ": ", what));
  }
}

int64_t ranks_of_process(const RunConfig& given, const Launch& launch) {
  const int64_t ranks = given.parallel.ranks;
  require<ConfigError>(ranks % launch.size == 0, "ranks = ", ranks, ", but the launcher started ", launch.size,
                       " processes: ranks must be a multiple of that; leave --ranks out for one rank per process, or "
                       "give a multiple of ",
                       launch.size);
  const int64_t here = std::max<int64_t>(ranks / launch.size, 1);
  Facts facts = facts_of_machine();
  facts.launched = {.ranks = launch.size * here, .ranks_per_process = here};
  resolve(given, facts);  // refuses what is not valid
  require_devices(given, here);
  return here;
}

std::optional<LaunchedRanks> launched_ranks(const ProcessWorld* world, const std::optional<Launch>& launch) {
  if (world == nullptr) return std::nullopt;
  return LaunchedRanks{world->size(), world->size() / launch->size, world->local_size()};
}

std::string binding_warning(const ProcessWorld* world, const std::optional<Launch>& launch) {
  if (world == nullptr) return "";
  const int each = world->size() / launch->size;
  return witan::binding_warning(core_binding(world->local_size() / each), *launch);
}

Plan part_of(Plan plan, int64_t ranks, int64_t ranks_per_process) {
  plan.ranks.resize(std::min(plan.ranks.size(), static_cast<size_t>(ranks)));
  plan.reserve_bytes *= ranks / ranks_per_process;
  return plan;
}

Plan part_of_host(const Plan& plan, const RunConfig& config, const ProcessWorld* world) {
  return world == nullptr ? plan : part_of(plan, world->local_size(), config.parallel.ranks_per_process);
}

cuda::PeerIslands peers_of_job(ProcessWorld& world, const RunConfig& config) {
  if (!config.parallel.on_gpu() || !config.parallel.peer_memory) return {};
  if (layout_of(config).mesh().size(Axis::expert) == 1) return {};
  std::vector<int> all_ranks(static_cast<size_t>(world.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  cuda::PeerIslands found;
  world.run([&](int rank) {
    const auto group = world.group(rank, all_ranks, "peers");
    auto mine = cuda::find_peers(*group, device_of(config, world.local_rank(rank)).index);
    if (rank == world.first_rank()) found = std::move(mine);
  });
  return found;
}

int64_t least_gpu_memory(ProcessWorld& world, const RunConfig& config) {
  std::vector<int> all_ranks(static_cast<size_t>(world.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  int64_t least = 0;
  world.run([&](int rank) {
    ThreadPool alone(1);
    Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 20), alone);
    const auto group = world.group(rank, all_ranks, "memory");
    const Tensor all = stream.empty({world.size()}, DType::i64, MemoryTag::communication);
    const Tensor own = all.narrow(0, rank, 1);
    *own.data<int64_t>() = usable_memory_of_gpu(device_of(config, world.local_rank(rank)).index);
    group->all_gather(stream, all, own);
    if (rank == world.first_rank()) least = std::ranges::min(all.span<int64_t>());
  });
  return least;
}

}  // namespace witan::cli
