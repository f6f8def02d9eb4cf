// witan bench: measures the parts of training against the peak of the device.
#include "witan/cli/bench/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "witan/base/files/file.h"
#include "witan/base/files/output_file.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/machine.h"
#include "witan/kernels/moe/expert_replicas.h"
#include "witan/moe/routers/router.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/timing.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

// The FLOPs and bytes of one call, over all kernels.
Cost total_cost(const Stream& stream) {
  Cost sum;
  for (const auto& [part, kernels] : stream.costs())
    for (const auto& [kernel, cost] : kernels) sum += cost;
  return sum;
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} µs", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

// Formats a number with three digits.
std::string rate_text(double rate) {
  return rate == 0 ? "" : rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

std::string share_text(double rate, double ceiling) {
  return rate == 0 || ceiling == 0 ? "" : fmt::format("{:.2f}", rate / ceiling);
}

int64_t room_for_ceilings(Device device) {
  return device.kind == Device::Kind::cuda ? int64_t{3} << 30 : 0;
}

// The number that the whole text is, if it is one.
std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// The largest load of a rank over the mean; place [R, E] of counts [R, E].
double fullest(const Tensor& counts, const Tensor& place, int64_t places) {
  std::vector<double> loads(static_cast<size_t>(counts.size(0)));
  for (int64_t i = 0; i < counts.elements(); ++i)
    loads[static_cast<size_t>(place.data<int64_t>()[i] / places)] += static_cast<double>(counts.data<int64_t>()[i]);
  return max_over_mean(loads);
}

}  // namespace

void Bench::measure(const std::string& name, const std::function<void()>& work) {
  stream_.reset_costs();
  work();
  if (stream_.is_meta()) return;
  const Cost cost = total_cost(stream_);
  lines_.push_back({name, median_seconds(stream_, seconds_, work), cost.flops, cost.bytes});
}

void Bench::measure_replayed(const std::string& name, const Cost& merit, const std::function<void()>& work) {
  work();  // warms up libraries and the arena before the recording
  if (stream_.is_meta()) return;
  std::unique_ptr<Graph> graph;
  if (stream_.queue()->records()) graph = record(*stream_.queue(), work);
  const auto call = [&] { graph ? graph->launch() : work(); };
  lines_.push_back({name, median_seconds(stream_, seconds_, call), merit.flops, merit.bytes});
}

Tensor Bench::normal(const Shape& shape, DType dtype, double scale) {
  Tensor out = stream_.empty(shape, dtype);
  if (!stream_.is_meta()) fill_normal(stream_, out, ++tensors_, scale);
  return out;
}

Device bench_device(const std::string& name) {
  const bool gpu = name == "cuda" || (name == "auto" && cuda::devices() > 0);
  require<DeviceError>(!gpu || cuda::devices() > 0, "--device cuda: ", cuda::why_none());
  return {gpu ? Device::Kind::cuda : Device::Kind::cpu};
}

BenchReport begin_report(const std::string& title, Device device, int threads,
                         const std::optional<kernels::DeviceCeilings>& ceilings) {
  BenchReport report{.title = title, .device = {}, .ceilings = {}, .lines = {}};
  report.device = device.kind == Device::Kind::cuda
                      ? cuda::properties(device.index).name
                      : fmt::format("{}, {} thread{}", read_processor().model, threads, threads == 1 ? "" : "s");
  if (ceilings) {
    report.ceilings = *ceilings;
    return report;
  }
  ThreadPool pool(threads);
  Stream stream(device, reserve_arena(device, room_for_ceilings(device)), pool);
  report.ceilings = kernels::measure_device(stream);
  return report;
}

BenchReport run_bench(const std::string& title, const BenchArgs& args, const std::function<void(Bench&)>& body) {
  require_json_file(args.json);
  const Device device = bench_device(args.device);
  const int threads = args.threads > 0 ? args.threads : usable_cores();
  ThreadPool pool(threads);
  Stream meta({Device::Kind::meta, 0, device.kind}, Arena::meta(), pool);
  Bench planned(meta, args.seconds);
  body(planned);
  BenchReport report = begin_report(title, device, threads);
  Stream stream(device, reserve_arena(device, meta.arena().high_water()), pool);
  Bench bench(stream, args.seconds);
  body(bench);
  report.lines = bench.lines();
  return report;
}

namespace {

void print_report(std::FILE* out, const BenchReport& report) {
  const auto& [flops, bytes] = report.ceilings;
  fmt::print(out, "{}: measured peak {} TFLOP/s, {} GB/s {}\n\n", report.device, rate_text(flops * 1e-12),
             rate_text(bytes * 1e-9), report.traffic);
  size_t widest = report.title.size();
  for (const BenchLine& line : report.lines) widest = std::max(widest, line.name.size());
  fmt::print(out, "{:<{}}  {:>9}  TFLOP/s  of peak    GB/s  of peak\n", report.title, widest, "time");
  for (const BenchLine& line : report.lines) {
    const double arithmetic = line.flops / line.seconds, traffic = line.bytes / line.seconds;
    std::string row = fmt::format("{:<{}}  {:>9}  {:>7}  {:>7}  {:>6}  {:>7}", line.name, widest,
                                  time_text(line.seconds), rate_text(arithmetic * 1e-12), share_text(arithmetic, flops),
                                  rate_text(traffic * 1e-9), share_text(traffic, bytes));
    row.erase(row.find_last_not_of(' ') + 1);
    fmt::print(out, "{}\n", row);
  }
  size_t label = 0;
  for (const BenchFigure& figure : report.figures) label = std::max(label, figure.label.size());
  if (!report.figures.empty()) fmt::print(out, "\n");
  for (const BenchFigure& figure : report.figures) fmt::print(out, "{:<{}}  {}\n", figure.label, label, figure.text);
}

// null if the work was not counted or took no measurable time.
nlohmann::ordered_json rate_json(double work, double seconds) {
  if (work == 0 || seconds == 0) return nullptr;
  return work / seconds;
}

OutputFile json_file(const std::string& path) {
  return {path, "--json", "file of figures", [](std::string_view bytes) {
            return is_json_with(bytes, {"benchmark", "device", "ceilings", "lines"});
          }};
}

void write_report(const std::string& path, const BenchReport& report) {
  nlohmann::ordered_json json = {
      {"benchmark", report.title},
      {"device", report.device},
      {"ceilings", {{"flops_per_s", report.ceilings.flops}, {"bytes_per_s", report.ceilings.bytes}}}};
  json["lines"] = nlohmann::ordered_json::array();
  for (const BenchLine& line : report.lines)
    json["lines"].push_back({{"name", line.name},
                             {"seconds", line.seconds},
                             {"flops_per_s", rate_json(line.flops, line.seconds)},
                             {"bytes_per_s", rate_json(line.bytes, line.seconds)}});
  for (const BenchFigure& figure : report.figures) json[figure.key] = figure.value;
  json_file(path).write(json.dump(2) + "\n");
}

}  // namespace

void finish_report(const Context& context, const std::string& json, const BenchReport& report) {
  print_report(context.out, report);
  if (!json.empty()) write_report(json, report);
}

void add_size(CLI::App& command, const std::string& flag, int64_t& size, const std::string& help, int64_t least) {
  add_option(command, flag, size, help).type_name("N").range(least, int64_t{1} << 40).show_default().group("shapes");
}

void add_dtype(CLI::App& command, std::string& dtype) {
  add_option(command, "--dtype", dtype, "Dtype of the operands (default: bfloat16 on a GPU, float32 on a CPU)")
      .one_of({"bfloat16", "float16", "float32", "float64"})
      .group("shapes");
}

DType bench_dtype(const std::string& dtype, bool on_gpu) {
  if (!dtype.empty()) return dtype_from_name(dtype);
  return on_gpu ? DType::bf16 : DType::f32;
}

void add_bench_args(CLI::App& command, BenchArgs& args) {
  add_option(command, "--device", args.device, "Device to measure; auto: a GPU if there is one")
      .one_of({"auto", "cpu", "cuda"})
      .show_default();
  add_option(command, "--threads", args.threads, "Compute threads on a CPU (0: one per core)")
      .type_name("N")
      .range(0, 4096)
      .show_default();
  add_option(command, "--seconds", args.seconds, "Time to measure each line for")
      .type_name("S")
      .range(0.0, 3600.0)
      .show_default();
  add_json_file(command, args.json);
}

void add_json_file(CLI::App& command, std::string& json) {
  add_option(command, "--json", json, "Also write the figures to this file").type_name("FILE");
}

void require_json_file(const std::string& json) {
  if (json.empty()) return;
  json_file(json).require_free();
  const fs::path folder = fs::absolute(json).parent_path();
  std::error_code none;
  require<IoError>(fs::is_directory(folder, none), "--json ", json, ": there is no folder ", folder.string());
  const AtomicFile trial(json);  // leaves no file
}

void add_bench(CLI::App& app, Context& context) {
  CLI::App* group = add_group(
      app, {"bench", "Measure the parts of training against the measured peak of the device",
            "Times are medians by the device's own clock, on random values. The peaks are measured in the same run: on "
            "a GPU a bfloat16 product of 8192 x 8192 matrices and a copy of 1 GiB, on a CPU multiply-adds between "
            "registers and a copy beyond its caches.",
            "witan bench gemm\nwitan bench moe-layer --tokens 32768 --hidden 2048 --ffn 1024 --experts 64 --topk 8\n"
            "witan bench step --config recipes/default.toml --steps 20 --json step.json"});
  add_bench_step(*group, context);
  add_bench_generate(*group, context);
  add_bench_moe_layer(*group, context);
  add_bench_attention(*group, context);
  add_bench_gemm(*group, context);
  add_bench_collectives(*group, context);
  add_bench_exchange(*group, context);
}

RankLoad rank_load(const std::vector<std::vector<int64_t>>& counts, int64_t ranks, int64_t slots) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 26), pool);
  RankLoad worst;
  for (const std::vector<int64_t>& layer : counts) {
    const auto E = static_cast<int64_t>(layer.size());
    const Tensor each = stream.empty({ranks, E}, DType::i64);
    for (int64_t i = 0; i < ranks * E; ++i) {
      const int64_t all = layer[static_cast<size_t>(i % E)], rank = i / E;
      each.data<int64_t>()[i] = all * (rank + 1) / ranks - all * rank / ranks;
    }
    const auto with = [&](int64_t of_each) {
      const kernels::ReplicaChoice choice{stream.empty({ranks, of_each}, DType::i64),
                                          stream.empty({ranks, E}, DType::i64)};
      kernels::choose_replicas(stream, choice, each);
      return fullest(each, choice.place, E / ranks + of_each);
    };
    worst.at_home = std::max(worst.at_home, with(0));
    worst.balanced = std::max(worst.balanced, with(slots));
  }
  return worst;
}

void add_skew(CLI::App& command, std::string& skew) {
  add_option(command, "--skew", skew,
             "Load experts unevenly: 0.5 sends that share of tokens to the first K experts, 4x draws experts by a Zipf "
             "law whose largest load is 4 times the mean, hot sends every token to expert 0")
      .type_name("SHARE|RATIOx|hot")
      .group("router");
}

void apply_skew(MoeConfig& moe, const std::string& skew) {
  if (skew.empty()) return;
  require<UsageError>(moe.num_experts > 0, "--skew ", skew, " loads experts unevenly, and the model has none");
  if (skew == "hot") {
    moe.moe_router_selection = "hot";
    return;
  }
  const bool ratio = skew.ends_with('x');
  const auto value = number_of(std::string_view(skew).substr(0, skew.size() - (ratio ? 1 : 0)));
  require<UsageError>(value && (ratio ? *value >= 1 : *value >= 0 && *value <= 1), "--skew ", skew,
                      ": give a share of tokens from 0 to 1 (0.5), the largest load over the mean (4x), or hot");
  moe.moe_router_selection = ratio ? "zipf" : "skew";
  (ratio ? moe.moe_router_imbalance : moe.moe_router_skew) = *value;
}

}  // namespace witan::cli
