// The tokenizer on one core: training on the default text (Debian's perl-doc), encoding it, encoding worst cases (one
// repeated character, a single word as long as the text), and loading a large one. bench/peers/vocabularies.py compares
// published ones with other software.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/text/scanners.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/tokenizer/training/bpe_trainer.h"

namespace witan {
namespace {

// The documents of the default text, read once.
const std::vector<std::string>& documents() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> read;
    read_corpus(find_sources(default_corpus()).files, {},
                [&](const Document& document) { read.emplace_back(document.text); });
    return read;
  }();
  return all;
}

int64_t total_bytes() {
  int64_t bytes = 0;
  for (const std::string& document : documents()) bytes += static_cast<int64_t>(document.size());
  return bytes;
}

Tokenizer trained() {
  BpeTrainer trainer({});
  for (const std::string& document : documents()) trainer.add(document);
  return trainer.train();
}

const Tokenizer& tokenizer() {
  static const Tokenizer one = trained();
  return one;
}

void train(benchmark::State& state) {
  documents();
  for (auto _ : state) benchmark::DoNotOptimize(trained().vocab_size());
  state.SetBytesProcessed(state.iterations() * total_bytes());
}
BENCHMARK(train)->Unit(benchmark::kMillisecond);

void encode_text(benchmark::State& state) {
  tokenizer();
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    for (const std::string& document : documents()) tokenizer().encode_to(document, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * total_bytes());
  state.counters["bytes/token"] = static_cast<double>(total_bytes()) / static_cast<double>(ids.size());
}
BENCHMARK(encode_text)->Unit(benchmark::kMillisecond);

// The same words with patterns of other published tokenizers; the last one has no scanner and runs through Oniguruma.
void encode_by_pattern(benchmark::State& state, std::string_view pattern) {
  TokenizerSpec spec = tokenizer().spec();
  spec.patterns = {std::string(pattern)};
  const Tokenizer other(std::move(spec));
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    for (const std::string& document : documents()) other.encode_to(document, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * total_bytes());
}
BENCHMARK_CAPTURE(encode_by_pattern, gpt2, kGpt2Pattern)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_by_pattern, o200k, kO200kPattern)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_by_pattern, kimi, kKimiPattern)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_by_pattern, deepseek, kDeepSeekPattern)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_by_pattern, unknown, R"(\w+|[^\w\s]+|\s+)")->Unit(benchmark::kMillisecond);

// A vocabulary of o200k's size with as many merges: each joins two earlier tokens.
std::string large_tokenizer_json() {
  constexpr size_t kTokens = 200'000, kLongest = 12;
  BpeTrainerConfig config;
  config.vocab_size = 256;
  config.special_tokens.clear();
  TokenizerSpec spec = BpeTrainer(config).train().spec();
  std::set<std::string> known(spec.tokens.begin(), spec.tokens.end());
  std::mt19937 random(1);
  while (spec.tokens.size() < kTokens) {
    const auto left = random() % spec.tokens.size(), right = random() % spec.tokens.size();
    std::string joined = spec.tokens[left] + spec.tokens[right];
    if (joined.size() > kLongest || !known.insert(joined).second) continue;
    spec.merges.push_back(
        {static_cast<int32_t>(left), static_cast<int32_t>(right), static_cast<int32_t>(spec.tokens.size())});
    spec.tokens.push_back(std::move(joined));
  }
  return write_tokenizer_json(spec);
}

void load_200k(benchmark::State& state) {
  const fs::path path = fs::temp_directory_path() / "witan_tokenizer_bench.json";
  write_file_atomically(path, large_tokenizer_json());
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(path).vocab_size());
}
BENCHMARK(load_200k)->Unit(benchmark::kMillisecond);

// Encodes the documents of WITAN_TEXTS, separated by null bytes, with the published tokenizer WITAN_TOKENIZER. New
// threads encode them once, so that caches of words are empty.
std::vector<std::string_view> documents_of(std::string_view texts) {
  std::vector<std::string_view> documents;
  for (size_t begin = 0; begin <= texts.size();) {
    const size_t end = std::min(texts.find('\0', begin), texts.size());
    documents.push_back(texts.substr(begin, end - begin));
    begin = end + 1;
  }
  return documents;
}

void encode_once(benchmark::State& state) {
  const Tokenizer tokenizer = Tokenizer::load(std::getenv("WITAN_TOKENIZER"));
  tokenizer.encode("qzxjvkqx");  // not a token: builds the tables for such words
  const std::string texts = read_file(std::getenv("WITAN_TEXTS"));
  const std::vector<std::string_view> all = documents_of(texts);
  const auto count = static_cast<size_t>(state.range(0));
  std::vector<std::vector<int32_t>> ids(count);
  const auto encode = [&](size_t thread) {
    for (size_t i = thread; i < all.size(); i += count) tokenizer.encode_to(all[i], ids[thread]);
  };
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < count; ++thread) threads.emplace_back(encode, thread);
    for (std::thread& thread : threads) thread.join();
  }
  size_t tokens = 0;
  for (const std::vector<int32_t>& part : ids) tokens += part.size();
  state.counters["tokens"] = static_cast<double>(tokens);
}

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(std::getenv("WITAN_TOKENIZER")).vocab_size());
}

[[maybe_unused]] const bool compares = [] {
  if (!std::getenv("WITAN_TOKENIZER") || !std::getenv("WITAN_TEXTS")) return false;
  benchmark::RegisterBenchmark("load", load)->Iterations(1)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("encode_once", encode_once)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Arg(4)
      ->Arg(8)
      ->Iterations(1)
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  return true;
}();

// Arguments: the character, and KiB of it. Time per byte must not grow with the length.
void encode_run(benchmark::State& state) {
  const std::string text(static_cast<size_t>(state.range(1)) << 10, static_cast<char>(state.range(0)));
  tokenizer();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().encode(text).size());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(encode_run)
    ->ArgNames({"character", "KiB"})
    ->ArgsProduct({{'a', ' ', '^', '0', '\n'}, {16, 1024}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace witan

BENCHMARK_MAIN();
