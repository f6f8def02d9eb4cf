// witan bench exchange: measures the exchange of token rows with experts on other ranks.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "witan/base/numbers/rng.h"
#include "witan/base/text.h"
#include "witan/cli/bench/bench.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/timing.h"

namespace witan::cli {
namespace {

struct ExchangeArgs {
  BenchArgs args;
  int ranks = 0;
  int64_t row = 1024;  // bytes
  std::vector<std::string> sizes = {"4MiB", "16MiB", "64MiB"};
};

// A random permutation of 0 … n-1.
std::vector<int64_t> shuffled(int64_t n, uint64_t number) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const Philox rng(2, number);
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)], order[rng.below(static_cast<uint64_t>(i) + 1, static_cast<uint64_t>(i))]);
  return order;
}

// The destinations of a rank's rows: equally many on each rank, in random order, at random places in this rank's part
// of the receive buffer.
std::vector<int64_t> random_places(int ranks, int rank, int64_t rows) {
  const int64_t part = rows / ranks;
  std::vector<int64_t> places(static_cast<size_t>(rows));
  const auto order = shuffled(rows, static_cast<uint64_t>(rank));
  for (int64_t to = 0; to < ranks; ++to) {
    const auto slots = shuffled(part, static_cast<uint64_t>(ranks + rank * ranks + to));
    for (int64_t i = 0; i < part; ++i)
      places[static_cast<size_t>(order[static_cast<size_t>(to * part + i)])] =
          to * PeerMemory::kRank + rank * part + slots[static_cast<size_t>(i)];
  }
  return places;
}

Tensor integers(Stream& stream, const std::vector<int64_t>& values) {
  const Tensor out = stream.empty({std::ssize(values)}, DType::i64);
  stream.write(out, values.data());
  return out;
}

std::vector<BenchLine> measure_rank(const Groups& groups, Stream& stream, const ExchangeArgs& s, int64_t bytes) {
  Group& group = groups.of(Axis::expert);
  const int64_t share = s.row * group.size();  // at least a row to each rank
  const int64_t rows = std::max<int64_t>(bytes / share, 1) * group.size();
  const Tensor x = stream.empty({rows, s.row / 2}, DType::bf16), buffer = stream.zeros(x.shape(), DType::bf16);
  fill_normal(stream, x, static_cast<uint64_t>(group.rank()));
  const std::string size = format_bytes(static_cast<double>(rows * s.row));
  std::vector<BenchLine> lines;
  if (PeerMemory* peers = group.peers()) {
    std::vector<int64_t> order(static_cast<size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    const Tensor own = integers(stream, order),
                 remote = integers(stream, random_places(group.size(), group.rank(), rows));
    lines.push_back(measure_exchange(group, stream, "random rows pushed, " + size, [&] {
      peers->push_rows(stream, {buffer, {}}, {x, {}}, own, 1, remote);
    }));
    lines.push_back(measure_exchange(group, stream, "random rows pulled, " + size, [&] {
      peers->pull_rows(stream, {x, {}}, {buffer, {}}, own, remote);
    }));
  }
  lines.push_back(measure_exchange(group, stream, "all-to-all, contiguous, " + size,
                                   [&] { group.all_to_all_equal(stream, buffer, x); }));
  return lines;
}

ExitCode bench_exchange(Context& context, const ExchangeArgs& s) {
  require<UsageError>(s.row % 2 == 0, "witan bench exchange: --row ", s.row,
                      " is not a whole number of bfloat16 elements of 2 bytes");
  const auto sizes = parse_sizes(s.sizes);
  require<UsageError>(std::ranges::min(sizes) > 0, "witan bench exchange: --sizes: 0 bytes hold no rows");
  const int64_t least = s.row * std::max({s.ranks, cuda::devices(), 2});  // a row for each rank
  const int64_t largest = std::max(std::ranges::max(sizes), least),
                arena = 2 * largest + 16 * (largest / s.row) + (int64_t{64} << 20);
  const auto body = [&](const Groups& groups, Stream& stream) {
    std::vector<BenchLine> lines;
    for (const int64_t bytes : sizes)
      std::ranges::move(measure_rank(groups, stream, s, bytes), std::back_inserter(lines));
    return lines;
  };
  finish_report(context, s.args.json,
                bench_ranks(fmt::format("exchange, rows of {} bytes", s.row), s.args, s.ranks, arena, body));
  return ExitCode::done;
}

}  // namespace

void add_bench_exchange(CLI::App& bench, Context& context) {
  auto state = std::make_shared<ExchangeArgs>();
  CLI::App* command = add_command(
      bench, context,
      {"exchange", "Measure the exchange of token rows with experts on other ranks",
       "GPUs with peer access push rows to random places of each other's memory and pull them from there; an "
       "all-to-all of as many contiguous bytes is shown for comparison. GB/s count the bytes that each rank sends.",
       "witan bench exchange\nwitan bench exchange --ranks 4 --row 4096 --sizes 16MiB,256MiB", Processes::one},
      [&context, state] { return bench_exchange(context, *state); });
  add_ranks(*command, state->ranks);
  add_size(*command, "--row", state->row, "Bytes of a row of bfloat16", 2);
  add_sizes(*command, state->sizes, "Bytes on each rank");
  add_bench_args(*command, state->args);
}

}  // namespace witan::cli
