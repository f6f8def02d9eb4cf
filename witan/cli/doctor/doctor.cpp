// witan doctor: describes this machine, measures it, and names what is missing.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/doctor/checks.h"
#include "witan/cli/machine.h"
#include "witan/cli/train/planning.h"
#include "witan/comm/processes/message_engine.h"
#include "witan/data/corpus/sources.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/report/progress/progress.h"
#include "witan/tensor/cuda.h"

namespace witan::cli {
namespace {

// The memory of the default run, with room to spare.
constexpr uint64_t kMemoryOfADefaultRun = uint64_t{1} << 30;
constexpr uint64_t kLeastDisk = uint64_t{1} << 30;  // for its shards and checkpoints

struct Findings {
  Processor processor;
  int cores = 0;  // cores that this process may use
  Memory memory;
  std::optional<DiskSpeed> disk;  // nothing if the folder is not writable
  std::string folder;
  double fma_one = 0, fma_all = 0, copy = 0;  // GFLOP/s, GFLOP/s, GB/s
  std::vector<Ceilings> kernels;              // of one rank with one thread, a rank per core, one rank with all cores
  std::string kept_in;                        // the file in which `plan` and `train` find them; empty: none
  size_t corpus_files = 0;                    // of the default corpus; 0: not installed
  std::vector<PackageSet> packages;
  std::vector<std::string> gpus;
  std::string no_ucx;  // why processes do not communicate through UCX; empty: they do
  ExchangeCheck exchange;
  std::vector<std::string> problems;  // each with its remedy
};

size_t count_corpus() {
  try {
    return default_corpus().size();
  } catch (const DataError&) {
    return 0;  // a finding here, not an error
  }
}

std::optional<DiskSpeed> try_disk(const fs::path& folder) {
  try {
    return measure_disk(folder);
  } catch (const IoError&) {
    return std::nullopt;  // as above
  } catch (const DiskFullError&) {
    return DiskSpeed{};  // a full disk
  }
}

void measure_machine(Findings& found) {
  ThreadPool one(1), all(found.cores);
  found.fma_one = kernels::measure_fma_gflops(one);
  found.fma_all = kernels::measure_fma_gflops(all);
  found.copy = kernels::measure_copy_gbytes(all);
}

// Measures again even if speeds are stored, with a line of progress.
void measure_kernels(Findings& found, Progress& progress) {
  const CeilingsFile file = ceilings_file();
  std::vector<Load> loads = {{"float32", 1, 1}};
  if (found.cores > 1) loads.insert(loads.end(), {{"float32", found.cores, 1}, {"float32", 1, found.cores}});
  for (const Load& load : loads) {
    const size_t number = found.kernels.size() + 1;
    progress.update(0, [&](int) {
      return fmt::format("measuring the kernels of a step, {} of {}: {} rank{} of {} thread{}", number, loads.size(),
                         load.ranks, load.ranks == 1 ? "" : "s", load.threads, load.threads == 1 ? "" : "s");
    });
    found.kernels.push_back(file.renew(load));
    progress.clear();
  }
  if (file.find(loads.back())) found.kept_in = file.path().string();
}

std::vector<std::string> find_problems(const Findings& found) {
  std::vector<std::string> problems;
  if (found.memory.usable() < kMemoryOfADefaultRun)
    problems.push_back(
        cat("only ", format_bytes(static_cast<double>(found.memory.usable())),
            " of memory are free: close other programs, or train a smaller model (`witan plan` shows what it needs)"));
  if (!found.disk)
    problems.push_back(cat(found.folder, " is not writable: work in another folder, or set --runs-folder"));
  else if (found.disk->free < kLeastDisk)
    problems.push_back(cat("only ", format_bytes(static_cast<double>(found.disk->free)), " of disk are free in ",
                           found.folder, ": free some space, or set --runs-folder to another disk"));
  if (found.corpus_files == 0)
    problems.emplace_back(
        "the default corpus is missing: apt-get install perl-doc, or train on your own text with --data");
  if (!found.exchange.ok())
    problems.emplace_back("two ranks exchanged wrong rows: this build is broken; rebuild it and run the tests");
  return problems;
}

Findings examine(Progress& progress) {
  Findings found;
  found.processor = read_processor();
  found.cores = usable_cores();
  found.memory = read_memory();
  found.folder = fs::current_path().string();
  found.disk = try_disk(found.folder);
  measure_machine(found);
  measure_kernels(found, progress);
  found.corpus_files = count_corpus();
  found.packages = read_packages();
  found.gpus = read_gpus();
  found.no_ucx = why_no_ucx();
  found.exchange = check_exchange();
  found.problems = find_problems(found);
  return found;
}

std::string rows(const std::vector<int32_t>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

void print_exchange(std::FILE* out, const ExchangeCheck& check) {
  const char* splits[] = {"2 3", "3 3"};
  for (size_t rank = 0; rank < 2; ++rank)
    fmt::print(out, "{}rank {} has {:<17} splits [{}]  receives {}\n", rank == 0 ? "exchange      " : "              ",
               rank, rows(check.sent[rank]), splits[rank], rows(check.received[rank]));
  fmt::print(out, "              {}\n", check.ok() ? "ok" : "WRONG");
}

// The combined rate of a rank's kernels with these names.
Cost rate_of(const Ceilings& ceilings, std::initializer_list<const char*> names) {
  Cost sum;
  for (const char* name : names)
    if (const auto found = ceilings.kernels.find(name); found != ceilings.kernels.end()) sum += found->second;
  return {sum.flops / sum.seconds, sum.bytes / sum.seconds, 1};
}

bool is_busy(const Findings& found) {
  return std::ranges::any_of(found.kernels, [](const Ceilings& c) { return c.busy; });
}

void print_kernels(std::FILE* out, const Findings& found) {
  const char* label = "kernels";
  for (const Ceilings& c : found.kernels) {
    const Cost products = rate_of(c, {"gemm"});
    const Cost experts = rate_of(c, {"grouped_gemm_forward", "grouped_swiglu_forward", "grouped_gemm_backward_input",
                                     "grouped_swiglu_backward", "grouped_gemm_backward_weight"});
    const Cost attention = rate_of(c, {"attention_forward", "attention_backward"});
    fmt::print(out,
               "{:<14}each of {} rank{} of {} thread{}: GFLOP/s of products {:.0f}, experts {:.0f}, attention {:.0f}",
               label, c.load.ranks, c.load.ranks == 1 ? "" : "s", c.load.threads, c.load.threads == 1 ? "" : "s",
               products.flops * 1e-9, experts.flops * 1e-9, attention.flops * 1e-9);
    fmt::print(out, "; GB/s of AdamW {:.1f}", rate_of(c, {"adamw_all"}).bytes * 1e-9);
    if (const auto sums = c.exchange.find("all_reduce"); sums != c.exchange.end())
      fmt::print(out, ", all-reduce {:.1f}", sums->second * 1e-9);
    fmt::print(out, "\n");
    label = "";
  }
  if (is_busy(found))
    fmt::print(out,
               "              other programs were using the cores: these figures are too low\n"
               "              (`witan plan` measures again when the machine is idle)\n");
  fmt::print(out, "              {}\n",
             found.kept_in.empty() ? "not saved: no cache folder is writable"
                                   : "saved for `plan` and `train` in " + found.kept_in);
}

nlohmann::ordered_json kernels_json(const std::vector<Ceilings>& all) {
  auto list = nlohmann::ordered_json::array();
  for (const Ceilings& c : all) {
    nlohmann::ordered_json rates;
    for (const auto& [name, cost] : c.kernels)
      rates[name] = {{"gflops", cost.flops / cost.seconds * 1e-9}, {"gbytes_per_s", cost.bytes / cost.seconds * 1e-9}};
    list.push_back({{"ranks", c.load.ranks},
                    {"threads", c.load.threads},
                    {"dtype", c.load.dtype},
                    {"busy", c.busy},
                    {"kernels", rates},
                    {"exchange_bytes_per_s", c.exchange}});
  }
  return list;
}

std::string verdict(const Findings& found) {
  if (!found.problems.empty()) return "not ready for a bare `witan train` yet; see above";
  return fmt::format("ready: `witan train` will use {} of CPU; `witan plan` shows what a run needs",
                     found.cores == 1 ? "one core" : fmt::format("{} cores", found.cores));
}

void print_text(std::FILE* out, const Findings& found) {
  const auto bytes = [](uint64_t value) { return format_bytes(static_cast<double>(value)); };
  fmt::print(out, "processor     {}\n", found.processor.model);
  fmt::print(out, "cores         {} usable, of {} hardware threads\n", found.cores, found.processor.threads);
  fmt::print(out, "instructions  {}\n",
             found.processor.instructions.empty() ? "no SIMD instructions that Witan uses"
                                                  : fmt::format("{}", fmt::join(found.processor.instructions, ", ")));
  fmt::print(out, "memory        {} free of {}{}\n", bytes(found.memory.available), bytes(found.memory.total),
             found.memory.limit ? ", control group's limit " + bytes(*found.memory.limit) : "");
  if (found.disk)
    fmt::print(out, "disk          {} free in {}; writes {}/s, fsync {}\n", bytes(found.disk->free), found.folder,
               format_bytes(found.disk->write_bytes_per_s), format_duration(found.disk->fsync_s));
  fmt::print(out, "ceiling       {:.1f} GFLOP/s float32 on one thread, {:.1f} on all; copy {:.1f} GB/s\n",
             found.fma_one, found.fma_all, found.copy);
  print_kernels(out, found);
  fmt::print(
      out, "corpus        {}\n",
      found.corpus_files > 0 ? fmt::format("perl-doc, {} files", found.corpus_files) : "perl-doc is not installed");
  for (const PackageSet& set : found.packages)
    fmt::print(out, "{}for {}: {}\n", &set == &found.packages.front() ? "packages      " : "              ",
               set.purpose,
               set.missing.empty() ? "installed" : fmt::format("apt-get install {}", fmt::join(set.missing, " ")));
  fmt::print(out, "GPUs          {}\n",
             found.gpus.empty() ? "none"
                                : fmt::format("{}: {}", fmt::join(found.gpus, ", "),
                                              cuda::built() ? "`witan doctor --gpu` checks them"
                                                            : "unused, as this build has no CUDA"));
  fmt::print(out, "messages      between processes of the CPU: {}\n",
             found.no_ucx.empty() ? "UCX " + ucx_version() : "TCP connections, which is slower: " + found.no_ucx);
  print_exchange(out, found.exchange);
  for (const std::string& problem : found.problems) fmt::print(out, "problem       {}\n", problem);
  fmt::print(out, "\n{}\n", verdict(found));
}

void print_json(std::FILE* out, const Findings& found) {
  nlohmann::ordered_json json;
  json["processor"] = {{"model", found.processor.model},
                       {"hardware_threads", found.processor.threads},
                       {"usable_cores", found.cores},
                       {"instructions", found.processor.instructions}};
  json["memory"] = {{"total", found.memory.total}, {"available", found.memory.available}, {"limit", nullptr}};
  if (found.memory.limit) json["memory"]["limit"] = *found.memory.limit;
  json["disk"] = nullptr;
  if (found.disk)
    json["disk"] = {{"folder", found.folder},
                    {"free", found.disk->free},
                    {"fsync_s", found.disk->fsync_s},
                    {"write_bytes_per_s", found.disk->write_bytes_per_s}};
  json["ceiling"] = {
      {"fma_gflops_one_thread", found.fma_one}, {"fma_gflops", found.fma_all}, {"copy_gbytes_per_s", found.copy}};
  json["kernels"] = kernels_json(found.kernels);
  json["default_corpus_files"] = found.corpus_files;
  for (const PackageSet& set : found.packages) json["missing_packages"][set.purpose] = set.missing;
  json["gpus"] = found.gpus;
  json["ucx"] = nullptr;
  if (found.no_ucx.empty()) json["ucx"] = ucx_version();
  json["exchange_received"] = found.exchange.received;
  json["exchange_ok"] = found.exchange.ok();
  json["problems"] = found.problems;
  fmt::print(out, "{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  struct State {
    bool gpu = false, json = false;
  };
  const auto state = std::make_shared<State>();
  CLI::App* command = add_command(
      app, context,
      {"doctor", "Check what this machine can do and what is missing",
       "Reads the hardware, measures disk, arithmetic and the kernels of a step, and lets two ranks (threads) "
       "communicate. It takes a few seconds on an idle machine and up to a minute on a busy one, where the figures are "
       "too low. With --gpu it checks the GPUs instead: devices, links, driver and libraries, the speed of copies and "
       "matrix products, and how fast the calls of a step are by their shapes, which `witan plan` and `witan bench "
       "step` predict times from; without a usable GPU it prints the reason and exits with code 10.",
       "witan doctor\nwitan doctor --gpu\nwitan doctor --json"},
      [&context, state] {
        if (state->gpu) return doctor_gpu(context, state->json);
        ProgressOptions options = progress_options(context.err);
        // Progress is shown only on a terminal.
        options.quiet_seconds = options.longest_silence = std::numeric_limits<double>::infinity();
        Progress progress(context.err, options);
        const Findings found = examine(progress);
        (state->json ? print_json : print_text)(context.out, found);
        return ExitCode::done;
      });
  add_flag(*command, "--gpu", state->gpu, "Check the GPUs");
  add_flag(*command, "--json", state->json, "Print JSON");
}

}  // namespace witan::cli
