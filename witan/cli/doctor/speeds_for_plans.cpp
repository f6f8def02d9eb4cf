#include <algorithm>
#include <functional>

#include "witan/base/process.h"
#include "witan/cli/bench/bench.h"
#include "witan/cli/doctor/checks.h"
#include "witan/cli/train/planning.h"
#include "witan/comm/peer_memory.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/speeds/gpu_speeds.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"

namespace witan::cli {
namespace {

constexpr int64_t kSmall = 64 << 10, kLarge = 64 << 20;  // bytes of each rank's tensor

GpuSpeeds measure_first_gpu(const Ceilings& ceilings) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cuda, 0}, Arena::reserve_on_gpu(0, MeasuredSizes::arena_bytes()), pool);
  return measure_speeds(stream, speeds_of(ceilings), DType::bf16);
}

// Measures operations between all ranks; each has a line for small and one for large tensors.
std::vector<BenchLine> exchanges_of_rank(const Groups& groups, Stream& stream) {
  std::vector<BenchLine> lines;
  for (const int64_t bytes : {kSmall, kLarge}) {
    Group& group = groups.of(Axis::expert);
    const int64_t n = group.size(), columns = 512, rows = bytes / 2 / columns / n;
    const Tensor whole = stream.zeros({rows * n * columns}, DType::bf16), other = stream.empty_like(whole),
                 part = stream.zeros({rows * columns}, DType::bf16);
    const auto measure = [&](const char* name, const std::function<void()>& call) {
      lines.push_back(measure_exchange(group, stream, name, call));
    };
    measure("all_reduce", [&] { group.all_reduce(stream, whole); });
    measure("reduce_scatter", [&] { group.reduce_scatter(stream, part, whole); });
    measure("all_gather", [&] { group.all_gather(stream, whole, part); });
    measure("all_to_all_equal", [&] { group.all_to_all_equal(stream, other, whole); });
    if (n % 2 == 0)
      measure("send", [&] {
        if (group.rank() % 2 == 0)
          group.send(stream, part, group.rank() + 1);
        else
          group.recv(stream, part, group.rank() - 1);
      });
    if (PeerMemory* peers = group.peers()) {
      const Tensor blocks = whole.reshape({rows, n, columns}), block = part.reshape({rows, columns});
      measure("gather_parts", [&] { peers->gather_parts(stream, blocks, block); });
      measure("sum_parts", [&] { peers->sum_parts(stream, block, blocks); });
    }
  }
  return lines;
}

// Finds the fixed cost of a call and its rate from the times of two sizes.
void use(GpuSpeeds& speeds, const std::vector<BenchLine>& lines, int ranks) {
  const size_t operations = lines.size() / 2;
  const auto set = [&](const std::string& name, double call, double rate) {
    const ExchangeSpeed& typical = speeds.exchange(name);
    speeds.exchanges[name] = {std::max(call - typical.rank * (ranks - 2), 0.0), typical.rank, rate};
  };
  for (size_t i = 0; i < operations; ++i) {
    const BenchLine &small = lines[i], &large = lines[operations + i];
    const double seconds = large.seconds - small.seconds;
    if (seconds <= 0 || large.bytes <= small.bytes) continue;  // the times say nothing about the rate
    const double rate = (large.bytes - small.bytes) / seconds, call = small.seconds - small.bytes / rate;
    set(small.name, call, rate);
    if (small.name == "reduce_scatter" || small.name == "all_gather") set(small.name + "_uneven", call, rate);
    if (small.name == "all_to_all_equal") set("all_to_all", call, rate);
    if (small.name == "gather_parts")  // experts' rows take the same path with the same number of waits
      for (const char* op : {"push_rows", "pull_rows", "exchange_pieces"})
        speeds.exchanges[op] = {speeds.exchange(op).call, 0, rate};
  }
}

}  // namespace

SpeedsForPlans measure_for_plans(int devices) {
  const Stopwatch whole;
  SpeedsForPlans found;
  const CeilingsFile file = ceilings_file();
  Ceilings one = measure_ceilings({"bfloat16", 1, 1, cuda::properties(0).name});
  one.speeds = measure_first_gpu(one);
  found.ceilings.push_back(one);
  for (int ranks = 2; ranks <= devices; ranks *= 2) {
    Ceilings several = one;
    several.load.ranks = ranks;
    several.fma_flops *= ranks;
    several.f32_flops *= ranks;
    constexpr int64_t kTensors = 4;
    use(*several.speeds, on_ranks(Device::Kind::cuda, ranks, 1, kTensors * kLarge, exchanges_of_rank), ranks);
    found.ceilings.push_back(several);
  }
  for (const Ceilings& ceilings : found.ceilings) file.keep(ceilings);
  found.seconds = whole.seconds();
  if (file.find(found.ceilings.back().load)) found.kept_in = file.path().string();
  return found;
}

}  // namespace witan::cli
