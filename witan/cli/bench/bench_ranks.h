// Shared by benchmarks of several ranks.
#pragma once

#include "witan/cli/bench/bench.h"
#include "witan/parallel/groups.h"

namespace witan::cli {

// --ranks; 0: one per GPU, or two on a CPU.
void add_ranks(CLI::App& command, int& ranks);

// A rank's groups: all ranks share one set of experts, so that both axes are groups of all ranks.
using RankBody = std::function<std::vector<BenchLine>(const Groups&, Stream&)>;

// Runs `body` on every rank, each on a stream with the given memory: on its own GPU or with the given threads. Returns
// rank 0's lines.
std::vector<BenchLine> on_ranks(Device::Kind kind, int ranks, int threads, int64_t arena_bytes, const RankBody& body);

// The same as a report. The peak of bytes is that of copies from one GPU to another, one way, or of copies on a CPU.
// Throws DeviceError, UsageError.
BenchReport bench_ranks(const std::string& title, const BenchArgs& args, int ranks, int64_t arena_bytes,
                        const RankBody& body);

// The median of calls that all ranks make equally often, on GPUs replayed as a CUDA graph. Bytes are those that the
// group counts as sent.
BenchLine measure_exchange(Group& group, Stream& stream, const std::string& name, const std::function<void()>& call);

// A subcommand's --sizes in bytes.
std::vector<int64_t> parse_sizes(const std::vector<std::string>& sizes);
void add_sizes(CLI::App& command, std::vector<std::string>& sizes, const std::string& help);

}  // namespace witan::cli
