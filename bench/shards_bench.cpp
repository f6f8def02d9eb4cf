// Training data in 1, 100 and 10,000 shards with 10^12 tokens in total (sparse files: tokens take no disk space):
// processor time to open them, for the first sample, and for each further one. For the whole program's start-up see
// bench/shards.sh.
//   build/bench/bench/shards_bench [make FOLDER SHARDS]      make: only writes the shards
#include <fmt/core.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/data/batches/batch.h"
#include "witan/train/data/data_fingerprint.h"
#include "witan/train/data/mixture_data.h"

namespace witan {
namespace {

constexpr int64_t kTokens = 1'000'000'000'000, kDocuments = 1'000'000;
constexpr int64_t kSamples = 20'000, kMicroBatch = 8;

// Writes a pair like IndexedWriter, but all tokens are 0 and take no disk space.
void make_shard(const fs::path& prefix, int64_t documents, int64_t length) {
  std::ofstream idx(prefix.string() + ".idx", std::ios::binary);
  const auto put = [&](const auto& value) { idx.write(reinterpret_cast<const char*>(&value), sizeof value); };
  idx.write("MMIDIDX\0\0", 9);
  put(uint64_t{1});
  put(uint8_t{8});  // u16
  put(documents);
  put(documents + 1);
  for (int64_t d = 0; d < documents; ++d) put(static_cast<int32_t>(length));
  for (int64_t d = 0; d < documents; ++d) put(2 * length * d);
  for (int64_t d = 0; d <= documents; ++d) put(d);
  std::ofstream(prefix.string() + ".bin", std::ios::binary).close();
  fs::resize_file(prefix.string() + ".bin", static_cast<uintmax_t>(2 * length * documents));
}

void make_shards(const fs::path& folder, int64_t shards) {
  fs::create_directories(folder);
  for (int64_t s = 0; s < shards; ++s)
    make_shard(folder / fmt::format("shard-{:05}", s), kDocuments / shards, kTokens / kDocuments);
}

double processor_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

void measure(const fs::path& folder, int64_t shards) {
  make_shards(folder, shards);
  RunConfig config;
  config.data.data_path = folder.string();
  config.data.seq_length = 4096;
  const double begin = processor_ms();
  const MixtureData data = open_mixture(config, {}, {});
  const double opened = processor_ms();
  fingerprint_of(data.prefixes);
  const double known = processor_ms();
  make_batch(*data.train, 0, 1, {});
  const double first = processor_ms();
  // The first sample of each shard computes the order of its documents, once per epoch: measured separately.
  const auto samples = [&](int64_t from) {
    for (int64_t i = from; i < from + kSamples; i += kMicroBatch) make_batch(*data.train, i, kMicroBatch, {});
    return processor_ms();
  };
  const double early = samples(1), late = samples(1 + kSamples + kMicroBatch);
  fmt::print("| {} | {:.0f} ms | {:.0f} ms | {:.0f} ms | {:.1f} us | {:.1f} us |\n", shards, opened - begin,
             known - opened, first - known, 1e3 * (early - first) / kSamples, 1e3 * (late - early) / kSamples);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  if (argc == 4 && !std::strcmp(argv[1], "make")) {
    make_shards(argv[2], std::atoll(argv[3]));
    return 0;
  }
  require<UsageError>(argc == 1, "shards_bench [make FOLDER SHARDS]");
  std::string pattern = (fs::temp_directory_path() / "witan-shards-XXXXXX").string();
  require<IoError>(::mkdtemp(pattern.data()) != nullptr, "cannot create ", pattern);
  fmt::print(
      "| shards | opened | fingerprint | first sample | of {0} samples, each | of the next {0}, each |\n"
      "|---|---|---|---|---|---|\n",
      kSamples);
  for (const int64_t shards : {1, 100, 10'000}) measure(fs::path(pattern) / std::to_string(shards), shards);
  fs::remove_all(pattern);
  return 0;
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  try {
    return witan::run(argc, argv);
  } catch (const witan::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
