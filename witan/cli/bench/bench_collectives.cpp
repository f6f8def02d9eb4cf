// witan bench collectives: measures the collective operations of training.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "witan/base/text.h"
#include "witan/cli/bench/bench.h"

namespace witan::cli {
namespace {

struct CollectivesArgs {
  BenchArgs args;
  int ranks = 0;
  std::vector<std::string> sizes = {"1MiB", "16MiB", "64MiB"};
};

using Operation = std::function<void(Group&, Stream&, const Tensor& all, const Tensor& part, const Tensor& other)>;

// all, other [n R, ..]: of all n ranks; part [R, ..]: of this rank.
const std::vector<std::pair<const char*, Operation>>& operations() {
  static const std::vector<std::pair<const char*, Operation>> list = {
      {"all-reduce",
       [](Group& g, Stream& s, const Tensor& all, const Tensor&, const Tensor&) { g.all_reduce(s, all); }},
      {"reduce-scatter", [](Group& g, Stream& s, const Tensor& all, const Tensor& part,
                            const Tensor&) { g.reduce_scatter(s, part, all); }},
      {"all-gather",
       [](Group& g, Stream& s, const Tensor& all, const Tensor& part, const Tensor&) { g.all_gather(s, all, part); }},
      {"all-to-all", [](Group& g, Stream& s, const Tensor& all, const Tensor&,
                        const Tensor& other) { g.all_to_all_equal(s, other, all); }},
  };
  return list;
}

std::vector<BenchLine> measure_rank(Group& group, Stream& stream, const std::vector<int64_t>& sizes) {
  std::vector<BenchLine> lines;
  for (const auto& [name, operation] : operations())
    for (const int64_t bytes : sizes) {
      const int64_t n = group.size(), elements = bytes / 4 / n * n;
      const Tensor all = stream.zeros({elements}, DType::f32), other = stream.empty_like(all),
                   part = stream.zeros({elements / n}, DType::f32);
      lines.push_back(measure_exchange(group, stream,
                                       fmt::format("{}, {}", name, format_bytes(static_cast<double>(bytes))),
                                       [&, &operate = operation] { operate(group, stream, all, part, other); }));
    }
  return lines;
}

ExitCode bench_collectives(Context& context, const CollectivesArgs& state) {
  const auto sizes = parse_sizes(state.sizes);
  const int64_t arena = 3 * std::ranges::max(sizes) + (int64_t{64} << 20);
  finish_report(context, state.args.json,
                bench_ranks("collectives", state.args, state.ranks, arena, [&](const Groups& groups, Stream& stream) {
                  return measure_rank(groups.world(), stream, sizes);
                }));
  return ExitCode::done;
}

}  // namespace

void add_bench_collectives(CLI::App& bench, Context& context) {
  auto state = std::make_shared<CollectivesArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"collectives", "Measure all-reduce, reduce-scatter, all-gather and all-to-all between ranks, float32",
       "A size is that of the whole tensor on each rank. GB/s count the bytes that each rank sends (NCCL's bus "
       "bandwidth): of B bytes 2 B (n-1)/n for an all-reduce, B (n-1)/n for the others.",
       "witan bench collectives\nwitan bench collectives --ranks 4 --sizes 4MiB,256MiB", Processes::one},
      [&context, state] { return bench_collectives(context, *state); });
  add_ranks(*command, state->ranks);
  add_sizes(*command, state->sizes, "Bytes of each rank's tensor");
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli
