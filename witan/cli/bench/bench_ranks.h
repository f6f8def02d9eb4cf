// What benchmarks of several ranks share.
#pragma once

#include "witan/cli/bench/bench.h"
#include "witan/parallel/groups.h"

namespace witan::cli {

// --ranks; 0: one per GPU, or two on a CPU.
void add_ranks(CLI::App& command, int& ranks);

// Of a rank: all ranks share one set of experts, so that both axes are groups of all.
using RankBody = std::function<std::vector<BenchLine>(const Groups&, Stream&)>;

// Runs `body` on every rank, each on a stream with so much memory: on a GPU of its own or with so many threads. Returns
// rank 0's lines.
std::vector<BenchLine> on_ranks(Device::Kind kind, int ranks, int threads, int64_t arena_bytes, const RankBody& body);

// The same as a report. The ceiling of bytes is that of copies from one GPU to another, one way, or of copies on a CPU.
// Throws DeviceError, UsageError.
BenchReport bench_ranks(const std::string& title, const BenchArgs& args, int ranks, int64_t arena_bytes,
                        const RankBody& body);

// The median of calls that all ranks make equally often, on GPUs replayed from a recording. Bytes are those that the
// group says it sent.
BenchLine measure_exchange(Group& group, Stream& stream, const std::string& name, const std::function<void()>& call);

// A subcommand's --sizes in bytes.
std::vector<int64_t> parse_sizes(const std::vector<std::string>& sizes);
void add_sizes(CLI::App& command, std::vector<std::string>& sizes, const std::string& help);

}  // namespace witan::cli
