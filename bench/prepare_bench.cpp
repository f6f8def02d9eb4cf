// Tables and rows to token shards: processor time of reading (decompressing, decoding, checking UTF-8), tokenizing and
// writing, each alone; and processor time, wall time and memory of `witan data` for all of it.
//   build/bench/bench/prepare_bench TOKENIZER FILE...      bench/peers/tables.py makes files
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/process.h"
#include "witan/base/threads/threads.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/prepare/growing_shards.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {
namespace {

constexpr size_t kBatch = 1 << 20;  // bytes of text per measurement

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Adds the processor time of this thread to `sum`.
class Timed {
 public:
  explicit Timed(double& sum) : sum_(sum), begin_(seconds_of(CLOCK_THREAD_CPUTIME_ID)) {}
  ~Timed() { sum_ += seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& sum_;
  double begin_;
};

struct Parts {
  double read = 0, tokenize = 0, write = 0;  // seconds
  double sum() const { return read + tokenize + write; }
};

// Each part on its own, batch by batch, so that parts neither wait for nor slow down each other.
Parts measure_parts(const std::vector<Source>& files, const TextEncoder& encoder, const fs::path& prefix) {
  Parts parts;
  {
    const Timed timed(parts.read);
    read_corpus(files, {}, [](const Document&) {});
  }
  GrowingShards shards(prefix, encoder.vocab_size, false);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  size_t bytes = 0;
  const auto flush = [&] {
    tokens.assign(texts.size(), {});
    {
      const Timed timed(parts.tokenize);
      for (size_t i = 0; i < texts.size(); ++i) encoder.encode(texts[i], tokens[i]);
    }
    {
      const Timed timed(parts.write);
      for (const auto& document : tokens) shards.add(document);
    }
    texts.clear();
    bytes = 0;
  };
  read_corpus(files, {}, [&](const Document& document) {
    texts.emplace_back(document.text);
    if ((bytes += document.text.size()) >= kBatch) flush();
  });
  flush();
  const Timed timed(parts.write);
  shards.publish();
  return parts;
}

struct Whole {
  double processor = 0, wall = 0;  // seconds
  uint64_t text = 0, peak = 0;     // bytes
};

Whole measure_whole(const std::vector<Source>& files, const TextEncoder& encoder, const fs::path& prefix, int threads) {
  PrepareOptions options;
  options.threads = threads;
  options.measure_split = false;  // as in `witan data prepare`
  restart_resident_peak();
  const uint64_t before = read_resident()->now;
  const double processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID), wall = seconds_of(CLOCK_MONOTONIC);
  const PreparedDataset made = prepare_dataset(files, encoder, prefix, options);
  return {seconds_of(CLOCK_PROCESS_CPUTIME_ID) - processor, seconds_of(CLOCK_MONOTONIC) - wall, made.corpus.text_bytes,
          read_resident()->peak - before};
}

void measure(const fs::path& path, const TextEncoder& encoder, const fs::path& folder) {
  const std::vector<Source> files = find_sources({path}).files;
  const Whole alone = measure_whole(files, encoder, folder / "alone", 1);
  const Whole all = measure_whole(files, encoder, folder / "all", usable_cores());
  const Parts parts = measure_parts(files, encoder, folder / "parts");
  const double mb = static_cast<double>(alone.text) * 1e-6;
  fmt::print(
      "| {} | {:.0f} MB | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.0f} % | {:.1f} | {:.1f} | {:.0f} MiB |\n",
      path.filename().string(), mb, parts.read, parts.tokenize, parts.write, parts.sum(), alone.processor,
      100 * parts.sum() / alone.processor, mb / alone.processor, mb / all.wall,
      static_cast<double>(std::max(alone.peak, all.peak)) / (1 << 20));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  require<UsageError>(argc >= 3, "prepare_bench TOKENIZER FILE...");
  const auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(argv[1]));
  const TextEncoder encoder = text_encoder(tokenizer);
  std::string pattern = (fs::temp_directory_path() / "witan-prepare-XXXXXX").string();
  require<IoError>(::mkdtemp(pattern.data()) != nullptr, "cannot create ", pattern);
  fmt::print(
      "| file | text | read | tokenize | write | sum, s | whole, s | sum/whole | MB/s, processor time | MB/s, {} "
      "threads, clock | memory |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      usable_cores());
  for (int i = 2; i < argc; ++i) measure(argv[i], encoder, pattern);
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
