// The tokenizer on one core: training on the default text (Debian's perl-doc), encoding it, and encoding what is bad
// for a careless encoder: one character, over and over, which is a single word as long as the text.
#include <benchmark/benchmark.h>

#include <string>

#include "witan/base/error.h"
#include "witan/data/corpus.h"
#include "witan/data/sources.h"
#include "witan/tokenizer/bpe_trainer.h"
#include "witan/tokenizer/tokenizer.h"

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

// Arguments: the character, KiB of it. Time per byte must not grow with the length.
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
