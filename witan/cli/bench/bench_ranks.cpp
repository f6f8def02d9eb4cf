#include <fmt/core.h>

#include "witan/base/numbers/median.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/bench/bench.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/comm/threads/threads.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/cuda.h"
#include "witan/tensor/queue.h"
#include "witan/tensor/timing.h"
#include "witan/train/step/device.h"

namespace witan::cli {
namespace {

constexpr int kWarmUps = 3, kSamples = 20, kCalls = 10;  // calls of a sample

int resolved(int ranks, bool on_gpu) {
  if (ranks == 0) ranks = on_gpu ? cuda::devices() : 2;
  require<UsageError>(ranks >= 2, "witan bench: one rank has no peer to communicate with: ",
                      on_gpu ? "--device cpu measures ranks that are CPU threads" : "use --ranks 2 or more");
  require<UsageError>(!on_gpu || ranks <= cuda::devices(), "witan bench: --ranks ", ranks,
                      ", but each rank needs its own GPU and ", cuda::devices(), " can be used");
  return ranks;
}

// The seconds of each sample, by the device's clock, or by the wall clock on CPUs, where ranks wait for their peers.
std::vector<double> samples(Stream& stream, const std::function<void()>& sample) {
  if (stream.is_cuda()) return time_calls(stream, kSamples, sample);
  std::vector<double> seconds;
  for (int i = 0; i < kSamples; ++i) {
    const Stopwatch whole;
    sample();
    seconds.push_back(whole.seconds());
  }
  return seconds;
}

}  // namespace

std::vector<BenchLine> on_ranks(Device::Kind kind, int ranks, int threads, int64_t arena_bytes, const RankBody& body) {
  const bool on_gpu = kind == Device::Kind::cuda;
  const Layout layout({.ranks = ranks, .expert_model_parallel_size = ranks, .threads = threads}, ranks, ranks);
  const PeersAllowed allowed = peers_allowed();
  const PeerAccess peers = allowed == PeersAllowed::none   ? PeerAccess::none
                           : allowed == PeersAllowed::host ? PeerAccess::host
                                                           : PeerAccess::wanted;
  ThreadWorld world(ranks);
  std::vector<BenchLine> lines;
  world.run([&](int rank) {
    ThreadPool pool(threads);
    const Device device{kind, on_gpu ? rank : 0};
    Stream stream(device, reserve_arena(device, arena_bytes + (on_gpu ? Stream::kScratchBytes : 0)), pool);
    const Groups groups = make_groups(world, layout, rank, stream, Sums::fast, peers);
    auto mine = body(groups, stream);
    groups.world().barrier(stream);
    stream.wait();
    if (rank == 0) lines = std::move(mine);
  });
  return lines;
}

BenchReport bench_ranks(const std::string& title, const BenchArgs& args, int ranks, int64_t arena_bytes,
                        const RankBody& body) {
  require_json_file(args.json);
  const Device device = bench_device(args.device);
  const bool on_gpu = device.kind == Device::Kind::cuda;
  const int threads = args.threads > 0 ? args.threads : 1;
  ranks = resolved(ranks, on_gpu);
  BenchReport report = begin_report(fmt::format("{}, {} ranks", title, ranks), device, threads);
  if (on_gpu) {
    report.ceilings.bytes = cuda::measure_link(0, 1).bytes_per_second;
    report.traffic = "copied from one GPU to another";
  }
  report.lines = on_ranks(device.kind, ranks, threads, arena_bytes, body);
  return report;
}

BenchLine measure_exchange(Group& group, Stream& stream, const std::string& name, const std::function<void()>& call) {
  for (int i = 0; i < kWarmUps; ++i) call();
  const auto calls = [&] {
    for (int i = 0; i < kCalls; ++i) call();
  };
  stream.wait();
  group.reset_sent();
  std::unique_ptr<Graph> graph;
  if (stream.queue()->records()) graph = record(*stream.queue(), calls);
  const double seconds = median(samples(stream, [&] { graph ? graph->launch() : calls(); })) / kCalls;
  double sent = 0;  // bytes of one sample if it was recorded, otherwise of all
  for (const auto& [operation, bytes] : group.sent()) sent += bytes;
  return {name, seconds, 0, sent / kCalls / (graph ? 1 : kSamples)};
}

void add_ranks(CLI::App& command, int& ranks) {
  add_option(command, "--ranks", ranks, "Number of ranks (0: one per GPU, or two on a CPU)")
      .type_name("N")
      .range(0, 4096)
      .show_default();
}

std::vector<int64_t> parse_sizes(const std::vector<std::string>& sizes) {
  std::vector<int64_t> bytes;
  for (const std::string& size : sizes) bytes.push_back(static_cast<int64_t>(parse_bytes(size)));
  return bytes;
}

void add_sizes(CLI::App& command, std::vector<std::string>& sizes, const std::string& help) {
  add_option(command, "--sizes", sizes, help).delimiter(',').type_name("SIZE").show_default().group("shapes");
}

}  // namespace witan::cli
