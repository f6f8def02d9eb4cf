// The disk fails or is full at every call with which commands write their files. The error names the file, saved data
// is not lost, and repeating the command then gives the usual result.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include "cli/cli_support.h"
#include "reliability/crash_states.h"
#include "reliability/small_runs.h"

namespace witan::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITAN_SKIP_FILES() GTEST_SKIP() << "forks processes that start threads"
#else
#define WITAN_SKIP_FILES() static_cast<void>(0)
#endif

// A command with its own folder and the files that it writes.
struct FileCommand {
  std::string name;
  std::vector<std::string> args;     // "@" stands for the folder
  std::vector<std::string> results;  // files below it that are the same after every success
};

std::vector<std::string> train_args(const std::string& steps) {
  std::istringstream words(
      "train --run r --runs-folder @/runs --data @/text.txt --device cpu --ranks 2 --threads 1 --num-layers 1 "
      "--hidden-size 16 --num-experts 2 --ffn-hidden-size 16 --seq-length 16 --micro-batch-size 1 --global-batch-size "
      "2 "
      "--tokenizer-vocab-size 260 --held-out-fraction 0.1 --eval-iters 1 --eval-interval 2 --sample-tokens 0 "
      "--lr-warmup-iters 0 --lr-decay-iters 4 --save-interval 2 --keep-last 1 --log-progress --record-routes @/routes "
      "--train-iters " +
      steps);
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<FileCommand> file_commands() {
  const std::vector<std::string> shards = {"runs/r/checkpoints/step-4/shard-00000.safetensors",
                                           "runs/r/checkpoints/step-4/shard-00001.safetensors"};
  return {
      {"train", train_args("4"), shards},
      {"train --trace-steps",
       [] {
         auto args = train_args("4");
         args.insert(args.end(), {"--trace-steps", "3:4"});
         return args;
       }(),
       shards},
      {"report", {"report", "r", "--runs-folder", "@/runs"}, {}},
      {"runs compare",
       {"runs", "compare", "r", "r2", "--runs-folder", "@/runs", "--report", "@/made/compare.html"},
       {}},
      {"data prepare",
       {"data", "prepare", "--input", "@/rows.jsonl", "--tokenizer", "@/tokenizer.json", "--output-prefix",
        "@/made/shards/all"},
       {"made/shards/all_text_document.bin", "made/shards/all_text_document.idx"}},
      {"data shuffle",
       {"data", "shuffle", "@/rows.jsonl", "--output", "@/made/rows/shuffled.jsonl"},
       {"made/rows/shuffled.jsonl"}},
      {"data stats", {"data", "stats", "@/rows.jsonl", "--report", "@/made/stats.html"}, {}},
      {"tokenizer train",
       {"tokenizer", "train", "@/text.txt", "--vocab-size", "260", "--output", "@/made/tokenizer.json"},
       {"made/tokenizer.json"}},
      {"export", {"export", "--run", "r", "--runs-folder", "@/runs", "@/made/hf"}, {"made/hf/model.safetensors"}},
      {"export to a file",
       {"export", "--run", "r", "--runs-folder", "@/runs", "--format", "gguf", "@/made/one.gguf"},
       {"made/one.gguf"}},
  };
}

// Write errors of train.log do not end a run.
bool is_tolerated(const std::string& file) {
  return file == "train.log";
}

// Returns "all.bin" for "write /made/.tmp-all.bin.123.4".
std::string file_of(const std::string& call) {
  if (call.ends_with(' ')) return "now";  // the folder itself
  std::string name = fs::path(call).filename().string();
  static constexpr std::string_view kTemporary = ".tmp-";
  if (!name.starts_with(kTemporary)) return name;
  name.erase(0, kTemporary.size());
  for (int parts = 0; parts < 2 && name.find('.') != std::string::npos; ++parts)
    if (name.find_first_not_of("0123456789", name.rfind('.') + 1) == std::string::npos) name.erase(name.rfind('.'));
  return name;
}

class RunFiles : public ::testing::Test {
 protected:
  RunFiles() {
    fs::create_directories(now() / "made");
    write_text(now() / "text.txt", some_text(200));
    std::string rows;
    for (int i = 0; i < 40; ++i)
      rows += "{\"text\": \"" + std::string(static_cast<size_t>(20 + i), 'a' + i % 26) + "\"}\n";
    write_text(now() / "rows.jsonl", rows);
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }

  fs::path before() const { return folder_ / "before"; }
  fs::path now() const { return folder_ / "now"; }
  fs::path shown() const { return folder_ / "shown"; }  // standard output of the last command

  // Runs the command in its own process.
  Ended run(const std::vector<std::string>& args, const Fault& fault = {}) const {
    std::vector<std::string> own = args;
    for (std::string& arg : own)
      if (arg.starts_with('@')) arg = now().string() + arg.substr(1);
    const fs::path said = folder_ / "said";
    Ended ended = in_child(folder_ / "says.json", [&] {
      arm(now(), fault);
      const Said all = witan(own);
      write_text(said, all.err);
      write_text(shown(), all.out);
      if (all.code != 0) throw Error(static_cast<ExitCode>(all.code), all.err);
    });
    return ended;
  }
  void restore() const {
    fs::remove_all(now());
    fs::copy(before(), now(), fs::copy_options::recursive);
  }
  // The bytes of the result files.
  std::vector<std::string> made(const FileCommand& command) const {
    std::vector<std::string> all;
    for (const std::string& file : command.results)
      all.push_back(fs::exists(now() / file) ? read_file(now() / file) : "none");
    return all;
  }

  TempFolder folder_;
};

TEST_F(RunFiles, EveryFailedWriteIsReportedWithItsFileAndLosesNothing) {
  WITAN_SKIP_FILES();
  // Runs of two steps for the commands that report on, export and resume runs.
  for (const char* name : {"r", "r2"}) {
    auto args = train_args("2");
    args[2] = name;
    const Ended first = run(args);
    ASSERT_EQ(first.code, 0) << first.message;
  }
  fs::copy_file(now() / "runs" / "r" / "tokenizer.json", now() / "tokenizer.json");
  fs::remove_all(now() / "routes");
  fs::rename(now(), before());

  int64_t faults = 0;
  std::map<std::string, int64_t> went_on;
  for (const FileCommand& command : file_commands()) {
    SCOPED_TRACE(command.name);
    // Training commands also start from scratch, with their own tokenizer and text.
    for (const bool anew : {false, true}) {
      if (anew && command.name != "train") continue;
      const auto restored = [&] {
        restore();
        if (anew) fs::remove_all(now() / "runs");
      };
      restored();
      const Ended whole = run(command.args, {.writes_only = true});
      ASSERT_EQ(whole.code, 0) << whole.message;
      const auto results = made(command);
      if (thorough()) {
        std::set<std::string> files;
        for (const std::string& call : whole.calls) files.insert(file_of(call));
        std::cout << command.name << (anew ? ", anew" : "") << ": " << whole.calls.size() << " calls, of";
        for (const std::string& file : files) std::cout << ' ' << file;
        std::cout << std::endl;
      }

      // The short form tries a few calls, each with a different kind of fault.
      const size_t stride = thorough() ? 1 : std::max<size_t>(1, whole.calls.size() / 6);
      size_t number = 0;
      for (size_t at = 1; at <= whole.calls.size(); at += stride) {
        const Fault kinds[] = {{.at = static_cast<int64_t>(at), .error = EIO, .writes_only = true},
                               {.at = static_cast<int64_t>(at), .error = ENOSPC, .writes_only = true, .lasting = true},
                               {.at = static_cast<int64_t>(at), .error = ENOSPC, .writes_only = true, .half = true}};
        for (const Fault& fault : thorough() ? std::span(kinds) : std::span(kinds).subspan(number++ % 3, 1)) {
          restored();
          const Ended ended = run(command.args, fault);
          ++faults;
          if (ended.calls.size() < at) continue;  // the order of ranks may change the number of calls
          const std::string& call = ended.calls[at - 1];
          const std::string when =
              cat(std::strerror(fault.error), fault.half ? " after half of" : " in", " call ", at, ", ", call);
          if (ended.code == 0) {
            ++went_on[file_of(call)];
            EXPECT_TRUE(is_tolerated(file_of(call))) << "succeeded despite  " << when;
          } else {
            const bool full = fault.error == ENOSPC;
            EXPECT_TRUE(full ? ended.code == 9 : ended.code == 4 || ended.code == 5)
                << when << ": " << ended.code << ", " << ended.message;
            bool named = false;
            for (size_t i = at - 1; i < ended.calls.size(); ++i)
              named |= ended.message.find(file_of(ended.calls[i])) != std::string::npos;
            EXPECT_TRUE(named) << when << ": " << ended.message;
          }
          if (command.name == "report") {
            EXPECT_NE(read_file(shown()).find("\nstate         finished\n"), std::string::npos)
                << "no figures after " << when << ": " << read_file(shown());
          }
          const Ended again = run(command.args);
          EXPECT_EQ(again.code, 0) << when << ", then: " << again.message;
          EXPECT_TRUE(made(command) == results) << when << ": different results";
        }
      }
    }
  }
  std::cout << faults << " faults; commands went on after those of";
  for (const auto& [file, times] : went_on) std::cout << ' ' << file << " (" << times << ')';
  std::cout << '\n';
}

}  // namespace
}  // namespace witan::test
