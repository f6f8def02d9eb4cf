#include "witan/cli/train/job.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>

#include "witan/base/threads/threads.h"
#include "witan/cli/train/planning.h"
#include "witan/comm/processes/launch.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/planner/speeds/ceilings.h"
#include "witan/tensor/arena.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

// Discards the output of processes other than the first, which print only if they fail.
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

// The affinity mask; all cores if the system does not report it.
std::bitset<1024> own_cores() {
  std::bitset<1024> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores.set();
  for (size_t core = 0; core < std::min<size_t>(cores.size(), CPU_SETSIZE); ++core) cores[core] = CPU_ISSET(core, &set);
  return cores;
}

// Packs measurements into the words of a collective. All processes know the hosts already.
constexpr size_t kMaskWords = 1024 / 64, kWords = kMaskWords + 5;

void pack(const ProcessCeilings& process, int64_t* words) {
  for (size_t core = 0; core < process.cores.size(); ++core)
    if (process.cores[core]) words[core / 64] |= static_cast<int64_t>(uint64_t{1} << core % 64);
  words += kMaskWords;
  *words++ = process.most_cores;
  *words++ = process.threads;
  for (const double value : {process.core_share, process.ceilings.flops, process.ceilings.bytes})
    *words++ = std::bit_cast<int64_t>(value);
}

ProcessCeilings unpack(const std::string& host, const int64_t* words) {
  ProcessCeilings process;
  process.host = host;
  for (size_t core = 0; core < process.cores.size(); ++core)
    process.cores[core] = static_cast<uint64_t>(words[core / 64]) >> core % 64 & 1;
  words += kMaskWords;
  process.most_cores = static_cast<int>(words[0]);
  process.threads = static_cast<int>(words[1]);
  process.core_share = std::bit_cast<double>(words[2]);
  process.ceilings = {std::bit_cast<double>(words[3]), std::bit_cast<double>(words[4])};
  return process;
}

}  // namespace

ExitCode run_process(Context& context, const std::optional<Launch>& launch,
                     const std::function<ExitCode(Context&)>& body) {
  if (!launch || launch->rank == 0) return body(context);
  const Silence silence;
  Context quiet = silence.context(context);
  try {
    return body(quiet);
  } catch (const ConfigError& error) {
    const std::string what = error.what();  // it may name its rank already
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
  resolve(given, facts);  // throws if the configuration is invalid
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

JobCeilings sum_of_processes(const std::vector<ProcessCeilings>& processes) {
  struct Host {
    std::bitset<1024> cores;
    bool limited = false;  // by a quota, which all processes of the host share
    int most_cores = 0;
    double threads = 0, had = 0;
    kernels::DeviceCeilings sum;
  };
  std::map<std::string, Host> hosts;
  for (const ProcessCeilings& process : processes) {
    Host& host = hosts[process.host];
    host.cores |= process.cores;
    host.limited |= process.most_cores < static_cast<int>(process.cores.count());
    host.most_cores = std::max(host.most_cores, process.most_cores);
    host.threads += process.threads;
    host.had += process.core_share * process.threads;
    host.sum.flops += process.ceilings.flops;
    host.sum.bytes += process.ceilings.bytes;
  }
  JobCeilings job;
  for (const auto& [name, host] : hosts) {
    const double cores = host.limited ? host.most_cores : static_cast<double>(host.cores.count());
    const double running = std::min(host.threads, cores);  // threads that run at the same time
    job.ceilings.flops += host.sum.flops * running / host.threads;
    job.ceilings.bytes += host.sum.bytes * running / host.threads;
    job.busy |= host.had < kUndisturbed * running;
  }
  return job;
}

JobCeilings measure_job(ProcessWorld& world, int64_t ranks_per_process, int64_t threads_per_rank,
                        const std::function<kernels::DeviceCeilings(ThreadPool&)>& measure) {
  const int each = static_cast<int>(ranks_per_process);
  std::vector<int> firsts;  // the first rank of each process
  for (int rank = 0; rank < world.size(); rank += each) firsts.push_back(rank);
  std::vector<ProcessCeilings> all;
  world.run([&](int rank) {
    if (rank != world.first_rank()) return;
    ThreadPool alone(1);
    Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 20), alone);
    const auto group = world.group(rank, firsts, "ceilings");
    ProcessCeilings own;
    own.cores = own_cores();
    own.most_cores = usable_cores();
    own.threads = static_cast<int>(std::min<int64_t>(ranks_per_process * threads_per_rank, own.most_cores));
    ThreadPool pool(own.threads);
    group->barrier(stream);
    own.core_share = kernels::measure_core_share(pool);
    own.ceilings = measure(pool);
    const auto processes = static_cast<int64_t>(firsts.size()), words = static_cast<int64_t>(kWords);
    const Tensor gathered = stream.zeros({processes * words}, DType::i64);
    const Tensor mine = gathered.narrow(0, rank / each * words, words);
    pack(own, mine.data<int64_t>());
    group->all_gather(stream, gathered, mine);
    for (int64_t process = 0; process < processes; ++process)
      all.push_back(
          unpack(world.host(firsts[static_cast<size_t>(process)]), gathered.data<int64_t>() + process * words));
  });
  return sum_of_processes(all);
}

}  // namespace witan::cli
