// Reads text columns of Parquet and Arrow files on one core: every file of the folder WITAN_TABLES, made by
// bench/peers/tables.py, which runs this and prints pyarrow's results beside it. MB/s of text by processor time.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "witan/base/error.h"
#include "witan/data/corpus/sources.h"

namespace witan {
namespace {

void read_texts(benchmark::State& state, const Source& source) {
  int64_t bytes = 0;
  for (auto _ : state) {
    const auto table = open_table(source.path, source.kind, {.text = "text"});
    for (TableCell cell; table->next(cell);) bytes += static_cast<int64_t>(cell.text.size());
  }
  state.SetBytesProcessed(bytes);
}

void register_tables() {
  const char* folder = std::getenv("WITAN_TABLES");
  require<UsageError>(folder != nullptr, "set WITAN_TABLES to a folder of tables; bench/peers/tables.py makes one");
  for (const Source& source : find_sources({folder}).files)
    benchmark::RegisterBenchmark(source.path.filename().c_str(), read_texts, source)->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  try {
    witan::register_tables();
  } catch (const witan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
