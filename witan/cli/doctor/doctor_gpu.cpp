#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/bench/bench.h"
#include "witan/cli/doctor/checks.h"
#include "witan/cli/machine.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"

namespace witan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Gpu {
  cuda::Properties properties;
  int64_t free = 0;                                 // bytes
  std::optional<kernels::DeviceCeilings> ceilings;  // nothing if measuring failed
};

struct GpuFindings {
  std::vector<std::string> driver_sees;  // names of all GPUs, whether or not this build can use them
  cuda::Software software;
  std::vector<Gpu> gpus;
  std::vector<cuda::Link> links;
  std::vector<BenchLine> collectives;  // between all GPUs
  std::optional<SpeedsForPlans> speeds;
  std::vector<cuda::LibraryState> libraries;
  std::vector<std::string> problems;  // each with its remedy
};

// Reports an error of a device as a problem on the page.
Gpu examine(int device, std::vector<std::string>& problems) {
  constexpr int64_t kRoom = int64_t{3} << 30;
  Gpu gpu;
  try {
    gpu.properties = cuda::properties(device);
    gpu.free = cuda::free_memory(device);
    ThreadPool alone(1);
    Stream stream({Device::Kind::cuda, device}, Arena::reserve_on_gpu(device, kRoom), alone);
    gpu.ceilings = kernels::measure_device(stream);
  } catch (const Error& error) {
    problems.push_back(cat("GPU ", device, ": ", error.what()));
  }
  return gpu;
}

cuda::Link examine_link(int from, int to, std::vector<std::string>& problems) {
  try {
    return cuda::measure_link(from, to);
  } catch (const Error& error) {
    problems.push_back(cat("GPU ", from, " to GPU ", to, ": ", error.what()));
    return {.from = from, .to = to};
  }
}

// The main exchanges of training on all GPUs: sums of gradients, and rows of experts.
std::vector<BenchLine> measure_collectives(int devices) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  return on_ranks(Device::Kind::cuda, devices, 1, 4 * kBytes, [](const Groups& groups, Stream& stream) {
    const int64_t n = groups.world().size();
    const Tensor x = stream.zeros({kBytes / 4 / n * n}, DType::f32), y = stream.empty_like(x);
    return std::vector{
        measure_exchange(groups.world(), stream, "all-reduce", [&] { groups.world().all_reduce(stream, x); }),
        measure_exchange(groups.world(), stream, "all-to-all", [&] { groups.world().all_to_all_equal(stream, y, x); })};
  });
}

GpuFindings examine() {
  GpuFindings found;
  found.driver_sees = read_gpus();
  found.software = cuda::software();
  found.libraries = cuda::libraries();
  const int devices = cuda::devices();
  if (devices == 0) found.problems.push_back(cuda::why_none());
  for (int device = 0; device < devices; ++device) found.gpus.push_back(examine(device, found.problems));
  for (int from = 0; from < devices; ++from)
    for (int to = 0; to < devices; ++to)
      if (from != to) found.links.push_back(examine_link(from, to, found.problems));
  for (const cuda::LibraryState& library : found.libraries)
    if (!library.missing.empty()) found.problems.push_back(library.missing);
  if (devices == 0) return found;
  try {
    found.speeds = measure_for_plans(devices);
  } catch (const Error& error) {
    found.problems.push_back(cat("speeds for plans: ", error.what()));
  }
  if (devices < 2) return found;
  try {
    found.collectives = measure_collectives(devices);
  } catch (const Error& error) {
    found.problems.push_back(cat("collectives between GPUs: ", error.what()));
  }
  return found;
}

void print_gpus(std::FILE* out, const std::vector<Gpu>& gpus) {
  size_t widest = 4;
  for (const Gpu& gpu : gpus) widest = std::max(widest, gpu.properties.name.size());
  fmt::print(out,
             "GPU  {:<{}}  capability  multiprocessors  L2 cache    memory free       of  copy GB/s  bf16 TFLOP/s\n",
             "name", widest);
  int number = 0;
  for (const Gpu& gpu : gpus) {
    const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
    const auto rate = [&](double value) { return gpu.ceilings ? fmt::format("{:.0f}", value) : std::string("–"); };
    const auto ceilings = gpu.ceilings.value_or(kernels::DeviceCeilings{});
    const cuda::Properties& p = gpu.properties;
    fmt::print(out, "{:<3}  {:<{}}  {:<10}  {:>15}  {:>8}  {:>13}  {:>7}  {:>9}  {:>12}\n", number++, p.name, widest,
               fmt::format("{}.{}", p.major, p.minor), p.multiprocessors, bytes(p.l2), bytes(gpu.free), bytes(p.memory),
               rate(ceilings.bytes * 1e-9), rate(ceilings.flops * 1e-12));
  }
  fmt::print(out, "\n");
}

std::string rate_of(const cuda::Link& link) {
  if (link.bytes_per_second == 0) return "?";  // measuring failed; a problem reports why
  return fmt::format("{:.0f}{}", link.bytes_per_second * 1e-9, link.peer ? "" : "*");
}

// A row for each source GPU, a column for each destination.
void print_links(std::FILE* out, const GpuFindings& found) {
  if (found.links.empty()) return;
  const size_t devices = found.gpus.size();
  bool all_direct = true, all_atomic = true;
  for (const cuda::Link& link : found.links) {
    if (link.bytes_per_second == 0) continue;
    all_direct &= link.peer;
    all_atomic &= link.atomics;
  }
  fmt::print(out, "links         GB/s one way; {}\n",
             !all_direct  ? "some pairs copy through host memory (*): their GPUs have no peer access"
             : all_atomic ? "every GPU has peer access to every other, with atomics (NVLink)"
                          : "every GPU has peer access to every other, without atomics (PCI Express)");
  fmt::print(out, "              from \\ to");
  for (size_t to = 0; to < devices; ++to) fmt::print(out, "{:>7}", to);
  auto link = found.links.begin();
  for (size_t from = 0; from < devices; ++from) {
    fmt::print(out, "\n              {:>9}", from);
    for (size_t to = 0; to < devices; ++to) {
      if (from == to) {
        fmt::print(out, "{:>7}", "–");
        continue;
      }
      fmt::print(out, "{:>7}", rate_of(*link));
      ++link;
    }
  }
  fmt::print(out, "\n");
}

void print_collectives(std::FILE* out, const std::vector<BenchLine>& collectives) {
  const char* label = "collectives";
  for (const BenchLine& line : collectives) {
    fmt::print(out, "{:<14}{} of 64 MiB: each GPU sends {:.0f} GB/s\n", label, line.name,
               line.bytes / line.seconds * 1e-9);
    label = "";
  }
}

void print_speeds(std::FILE* out, const GpuFindings& found) {
  if (!found.speeds) return;
  const GpuSpeeds& speeds = *found.speeds->ceilings.front().speeds;
  const auto kernel = [&](const char* name) { return speeds.kernels.at(name); };
  fmt::print(
      out,
      "for plans     {} products at up to {:.0f} TFLOP/s, attention forward {:.0f} and backward {:.0f} at {:.0f} "
      "keys; memory {:.0f} GB/s; a call takes {:.1f} us\n",
      speeds.products.values.size(), speeds.product_flops * 1e-12, speeds.attention_forward.of({2048}) * 1e-12,
      speeds.attention_backward.of({2048}) * 1e-12, 2048.0, kernel("").bytes * 1e-9, kernel("").call * 1e6);
  for (const Ceilings& ceilings : found.speeds->ceilings) {
    if (ceilings.load.ranks == 1) continue;
    fmt::print(out, "              exchanges of {} ranks, us a call and GB/s:", ceilings.load.ranks);
    for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "send", "gather_parts", "sum_parts"}) {
      const ExchangeSpeed& speed = ceilings.speeds->exchange(name);
      fmt::print(out, " {} {:.0f}, {:.0f};", name, speed.call * 1e6, speed.bytes * 1e-9);
    }
    fmt::print(out, "\n");
  }
  fmt::print(out, "              measured in {:.0f} s; {}\n", found.speeds->seconds,
             found.speeds->kept_in.empty() ? "not saved: no cache folder is writable"
                                           : "saved for `plan` and `bench step` in " + found.speeds->kept_in);
}

void print_software(std::FILE* out, const GpuFindings& found) {
  const cuda::Software& s = found.software;
  fmt::print(out, "driver        {}\n",
             !s.driver.empty()        ? fmt::format("{}, runs CUDA {} and older", s.driver, s.driver_cuda)
             : !s.driver_cuda.empty() ? fmt::format("runs CUDA {} and older", s.driver_cuda)
                                      : "none is loaded");
  fmt::print(out, "this program  {}\n",
             s.built_with.empty() ? "built without CUDA" : fmt::format("built with CUDA {}", s.built_with));
  const char* label = "libraries";
  for (const cuda::LibraryState& library : found.libraries) {
    fmt::print(out, "{:<14}{:<8}  {:<9}  {}\n", label, library.name,
               library.missing.empty() ? library.version : "missing",
               library.missing.empty() ? library.path : "for " + library.purpose);
    label = "";
  }
}

std::string gpu_verdict(const GpuFindings& found) {
  if (found.gpus.empty()) return "no usable GPU; see above";
  const std::string gpus = found.gpus.size() == 1 ? "one GPU" : fmt::format("{} GPUs", found.gpus.size());
  return fmt::format("{} can be used{}", gpus, found.problems.empty() ? "" : "; see the problems above");
}

void print_gpu_text(std::FILE* out, const GpuFindings& found) {
  if (!found.gpus.empty()) print_gpus(out, found.gpus);
  if (found.gpus.empty())
    fmt::print(out, "GPUs          {}\n",
               found.driver_sees.empty() ? "the driver reports none"
                                         : fmt::format("{}: unused", fmt::join(found.driver_sees, ", ")));
  print_links(out, found);
  print_collectives(out, found.collectives);
  print_speeds(out, found);
  print_software(out, found);
  for (const std::string& problem : found.problems) fmt::print(out, "problem       {}\n", problem);
  fmt::print(out, "\n{}\n", gpu_verdict(found));
}

Json measured(double value) {  // 0: not measured
  return value > 0 ? Json(value) : Json(nullptr);
}

Json gpu_json(const Gpu& gpu) {
  const cuda::Properties& p = gpu.properties;
  Json json = {{"name", p.name},
               {"compute_capability", fmt::format("{}.{}", p.major, p.minor)},
               {"multiprocessors", p.multiprocessors},
               {"l2_bytes", p.l2},
               {"memory_bytes", p.memory},
               {"free_bytes", gpu.free},
               {"copy_bytes_per_s", nullptr},
               {"bf16_flops_per_s", nullptr}};
  if (gpu.ceilings) {
    json["copy_bytes_per_s"] = gpu.ceilings->bytes;
    json["bf16_flops_per_s"] = gpu.ceilings->flops;
  }
  return json;
}

void print_gpu_json(std::FILE* out, const GpuFindings& found) {
  Json json;
  json["built_with_cuda"] = found.software.built_with;
  json["driver"] = found.software.driver;
  json["driver_cuda"] = found.software.driver_cuda;
  json["driver_sees"] = found.driver_sees;
  json["gpus"] = Json::array();
  for (const Gpu& gpu : found.gpus) json["gpus"].push_back(gpu_json(gpu));
  json["links"] = Json::array();
  for (const cuda::Link& link : found.links)
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"peer_access", link.peer},
                             {"atomics", link.atomics},
                             {"bytes_per_s", measured(link.bytes_per_second)}});
  json["collectives"] = Json::array();
  for (const BenchLine& line : found.collectives)
    json["collectives"].push_back({{"name", line.name}, {"bytes_per_s", line.bytes / line.seconds}});
  json["speeds_kept_in"] = found.speeds ? Json(found.speeds->kept_in) : Json(nullptr);
  json["libraries"] = Json::array();
  for (const cuda::LibraryState& library : found.libraries)
    json["libraries"].push_back(
        {{"name", library.name}, {"version", library.version}, {"path", library.path}, {"missing", library.missing}});
  json["problems"] = found.problems;
  fmt::print(out, "{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

ExitCode doctor_gpu(const Context& context, bool json) {
  const GpuFindings found = examine();
  (json ? print_gpu_json : print_gpu_text)(context.out, found);
  return found.gpus.empty() ? ExitCode::device : ExitCode::done;
}

}  // namespace witan::cli
