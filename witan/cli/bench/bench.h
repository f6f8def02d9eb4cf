// Shared by the subcommands of `witan bench`: the device to measure, its peaks, the table and the JSON, ranks and
// skewed loads of experts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/cli/command.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/moe/config.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/tensor.h"

namespace witan::cli {

// --device, --threads, --seconds, --json.
struct BenchArgs {
  std::string device = "auto";  // auto | cpu | cuda
  int threads = 0;              // of a CPU; 0: one per core
  double seconds = 0.3;         // for each line
  std::string json;             // a file; empty: none
};
void add_bench_args(CLI::App& command, BenchArgs& args);
void add_json_file(CLI::App& command, std::string& json);
// Checks the file of --json (empty: none) before anything is measured. Throws UsageError if another file is there, and
// IoError or DiskFullError if it cannot be written.
void require_json_file(const std::string& json);
// A size of the measured work, at least `least`.
void add_size(CLI::App& command, const std::string& flag, int64_t& size, const std::string& help, int64_t least);
// --dtype; empty: bfloat16 on a GPU, float32 on a CPU.
void add_dtype(CLI::App& command, std::string& dtype);
DType bench_dtype(const std::string& dtype, bool on_gpu);

// One line of the table.
struct BenchLine {
  std::string name;
  double seconds = 0;           // median of a call
  double flops = 0, bytes = 0;  // of a call; 0: not applicable
};

// Runs a benchmark: first on the meta device, which determines its memory, then on the device itself.
class Bench {
 public:
  Bench(Stream& stream, double seconds) : stream_(stream), seconds_(seconds) {}

  Stream& stream() { return stream_; }
  bool on_gpu() const { return stream_.plans_for_cuda(); }
  // Times calls of `work`; FLOPs and bytes are counted by its kernels.
  void measure(const std::string& name, const std::function<void()>& work);
  // Times work of known FLOPs and bytes; on a GPU it is replayed as a CUDA graph, as in a step: every call does the
  // same work on the same addresses.
  void measure_replayed(const std::string& name, const Cost& merit, const std::function<void()>& work);
  const std::vector<BenchLine>& lines() const { return lines_; }

  // A floating tensor of normal values times `scale`.
  Tensor normal(const Shape& shape, DType dtype, double scale = 1);

 private:
  Stream& stream_;
  double seconds_;
  uint64_t tensors_ = 0;
  std::vector<BenchLine> lines_;
};

// A value printed in addition to the table.
struct BenchFigure {
  std::string key;  // in the JSON: "tokens_per_s"
  double value = 0;
  std::string label, text;  // "tokens/s", "342107"
};

// The results, and the device they were measured on.
struct BenchReport {
  std::string title;   // "gemm, 16384 tokens, bfloat16"
  std::string device;  // "NVIDIA H200", or the processor's model
  kernels::DeviceCeilings ceilings;
  std::vector<BenchLine> lines;
  std::vector<BenchFigure> figures = {};
  std::string traffic = "read and written";  // what the peak of bytes refers to
};

// Measures the device's ceilings, then runs `body`. Throws DeviceError, OutOfMemoryError.
BenchReport run_bench(const std::string& title, const BenchArgs& args, const std::function<void(Bench&)>& body);
// Begins a report with the device's name and peaks, for callers that run the body themselves. Nothing is measured if
// the peaks are given.
BenchReport begin_report(const std::string& title, Device device, int threads,
                         const std::optional<kernels::DeviceCeilings>& ceilings = std::nullopt);
// The device selected by --device; throws DeviceError if there is no GPU.
Device bench_device(const std::string& name);
// Prints the table, and writes --json.
void finish_report(const Context& context, const std::string& json, const BenchReport& report);

// The subcommands, each in the file of its name.
void add_bench_attention(CLI::App& bench, Context& context);
void add_bench_collectives(CLI::App& bench, Context& context);
void add_bench_exchange(CLI::App& bench, Context& context);
void add_bench_gemm(CLI::App& bench, Context& context);
void add_bench_generate(CLI::App& bench, Context& context);
void add_bench_moe_layer(CLI::App& bench, Context& context);
void add_bench_step(CLI::App& bench, Context& context);

// Adds --skew, which sets loads of experts that differ by a given measure. Empty: even loads.
void add_skew(CLI::App& command, std::string& skew);

// Forces the choice of experts that `skew` names: "0.5", the share of tokens that choose the first K experts; "4x",
// loads of a Zipf law whose largest is 4 times the mean; "hot", where every token chooses expert 0. Throws UsageError
// for anything else, and where the model has no experts.
void apply_skew(MoeConfig& moe, const std::string& skew);

// Rows that the fullest rank computes over the mean, in the worst layer.
struct RankLoad {
  double at_home = 0;   // if every expert is computed on its own rank
  double balanced = 0;  // with the replicas that balance these loads
};
// counts [layers][E]: assignments of all `ranks` expert-parallel ranks, each of which is taken to have an equal share.
RankLoad rank_load(const std::vector<std::vector<int64_t>>& counts, int64_t ranks, int64_t slots);

// Adds --ranks; 0: one per GPU, or two on a CPU.
void add_ranks(CLI::App& command, int& ranks);

// A rank's groups: all ranks share one set of experts, so that both axes are groups of all ranks.
using RankBody = std::function<std::vector<BenchLine>(const Groups&, Stream&)>;

// Runs `body` on every rank, each on a stream with the given memory: on its own GPU or with the given threads. Returns
// rank 0's lines.
std::vector<BenchLine> on_ranks(Device::Kind kind, int ranks, int threads, int64_t arena_bytes, const RankBody& body);

// Runs on_ranks() and makes a report. The peak of bytes is that of one-way copies between two GPUs, or of copies on a
// CPU. Throws DeviceError, UsageError.
BenchReport bench_ranks(const std::string& title, const BenchArgs& args, int ranks, int64_t arena_bytes,
                        const RankBody& body);

// The median of calls that all ranks make equally often, on GPUs replayed as a CUDA graph. Bytes are those that the
// group counts as sent.
BenchLine measure_exchange(Group& group, Stream& stream, const std::string& name, const std::function<void()>& call);

// A subcommand's --sizes in bytes.
std::vector<int64_t> parse_sizes(const std::vector<std::string>& sizes);
void add_sizes(CLI::App& command, std::vector<std::string>& sizes, const std::string& help);

}  // namespace witan::cli
