// witan bench: how long the parts of training take here, against what the device does at most.
#include "witan/cli/bench/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/files/file.h"
#include "witan/base/files/output_file.h"
#include "witan/cli/args/options.h"
#include "witan/cli/commands.h"
#include "witan/cli/machine.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/timing.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

// All that was counted, of one call.
Cost counted(const Stream& stream) {
  Cost sum;
  for (const auto& [part, kernels] : stream.costs())
    for (const auto& [kernel, cost] : kernels) sum += cost;
  return sum;
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} µs", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

// Three digits whatever the size.
std::string rate_text(double rate) {
  return rate == 0 ? "" : rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

std::string share_text(double rate, double ceiling) {
  return rate == 0 || ceiling == 0 ? "" : fmt::format("{:.2f}", rate / ceiling);
}

int64_t room_for_ceilings(Device device) {
  return device.kind == Device::Kind::cuda ? int64_t{3} << 30 : 0;
}

}  // namespace

void Bench::measure(const std::string& name, const std::function<void()>& work) {
  stream_.reset_costs();
  work();
  if (stream_.is_meta()) return;
  const Cost cost = counted(stream_);
  lines_.push_back({name, median_seconds(stream_, seconds_, work), cost.flops, cost.bytes});
}

void Bench::measure_replayed(const std::string& name, const Cost& merit, const std::function<void()>& work) {
  work();  // what libraries and arenas do at first is not recorded
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

// null where it was not counted, or took no time that could be seen.
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
  const AtomicFile trial(json);  // which leaves nothing
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

}  // namespace witan::cli
