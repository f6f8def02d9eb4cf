// The journal of an unfinished shuffle: the shuffle is continued to its end, or refused. The first byte selects whether
// the run that the journal may refer to exists.
#include <string_view>

#include "fuzz/support.h"
#include "witan/data/rows/shuffle_rows.h"

namespace witan {
namespace {

constexpr const char* kRows = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n";

// An unfinished shuffle of three rows, as left by a kill after the first progress.
class UnfinishedShuffle {
 public:
  UnfinishedShuffle() : sources_(find_sources({folder_.write("in.jsonl", kRows)}).files) {
    options_.parts.chunks = 2;
    options_.memory = 1 << 20;
    try {
      shuffle_rows(sources_, output_, options_, [](const RowProgress& now) {
        if (std::string_view(now.phase) == "writing") throw IoError("stopped");
      });
    } catch (const IoError&) {  // the shuffle could be continued afterwards
    }
    key_ = read_file(work_ / "key.json");
    RunBuffer buffer;
    for (int64_t row = 1; row <= 3; ++row) buffer.add(shuffle_key(options_.seed, 0, row), "{\"text\": \"x\"}");
    buffer.write(folder_ / "run-0");
    run_ = read_file(folder_ / "run-0");
  }

  void go_on(std::string_view journal, bool with_run) {
    fs::create_directories(work_);
    folder_.write(".rows.unfinished/key.json", key_);
    folder_.write(".rows.unfinished/journal.jsonl", journal);
    if (with_run) folder_.write(".rows.unfinished/run-0", run_);
    fuzz::expect_own_errors([&] {
      const MadeRows made = shuffle_rows(sources_, output_, options_);
      assert(made.files.size() == 2);
    });
    for (const char* made : {".rows.made.json", "rows.chunk.00.jsonl", "rows.chunk.01.jsonl"}) {
      std::error_code absent;
      fs::remove(folder_ / made, absent);
    }
  }

 private:
  fuzz::Folder folder_;
  const fs::path output_ = folder_ / "rows.jsonl", work_ = folder_ / ".rows.unfinished";
  const std::vector<Source> sources_;
  ShuffleOptions options_;
  std::string key_, run_;
};

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static UnfinishedShuffle shuffle;
  if (size > 0) shuffle.go_on(fuzz::text_of(data + 1, size - 1), data[0] % 2 == 1);
  return 0;
}
