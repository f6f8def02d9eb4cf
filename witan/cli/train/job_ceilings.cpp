#include "witan/cli/train/job_ceilings.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <map>

#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/speeds/ceilings.h"
#include "witan/tensor/arena.h"

namespace witan::cli {
namespace {

// The affinity mask; all cores where the system does not say.
std::bitset<1024> own_cores() {
  std::bitset<1024> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores.set();
  for (size_t core = 0; core < std::min<size_t>(cores.size(), CPU_SETSIZE); ++core) cores[core] = CPU_ISSET(core, &set);
  return cores;
}

// As words that a collective carries; hosts are known to all.
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

JobCeilings sum_of_processes(const std::vector<ProcessCeilings>& processes) {
  struct Host {
    std::bitset<1024> cores;
    bool limited = false;  // by a quota, which is that of all its processes
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
    const double running = std::min(host.threads, cores);  // at once
    job.ceilings.flops += host.sum.flops * running / host.threads;
    job.ceilings.bytes += host.sum.bytes * running / host.threads;
    job.busy |= host.had < kUndisturbed * running;
  }
  return job;
}

JobCeilings measure_job(ProcessWorld& world, int64_t ranks_per_process, int64_t threads_per_rank,
                        const std::function<kernels::DeviceCeilings(ThreadPool&)>& measure) {
  const int each = static_cast<int>(ranks_per_process);
  std::vector<int> firsts;  // a rank of each process
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
