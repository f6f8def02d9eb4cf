#include "witan/data/prepare/tokenize_corpus.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "data/data_support.h"
#include "witan/base/error.h"
#include "witan/data/prepare/prepare.h"

namespace witan {
namespace {

using ::testing::HasSubstr;

// One token per byte, and 256 for the end of text.
TextEncoder bytes_encoder() {
  return {[](std::string_view text, std::vector<int32_t>& out) {
            for (const char c : text) out.push_back(static_cast<unsigned char>(c));
          },
          [](int32_t token) { return token == 256 ? 0 : 1; }, 257, 256, "bytes"};
}

class TokenizeCorpus : public ::testing::Test {
 protected:
  // Several MiB in sources of every kind, with unusable rows.
  void SetUp() override {
    options_.piece_bytes = 1 << 20;
    options_.corpus.bad_row_share = 0.5;
    options_.corpus.visit_empty = true;
    for (int s = 0; s < 3; ++s) {
      std::string rows;
      for (int i = 0; i < 900; ++i) {
        const auto length = static_cast<size_t>((i * 37 + s) % 3000);
        rows += i % 100 == 99 ? "broken\n"
                              : "{\"text\": \"" + std::string(length, static_cast<char>('a' + i % 26)) + "\"}\n";
      }
      put(folder_ / ("text/" + std::to_string(s) + ".jsonl"), rows);
    }
    put(folder_ / "text/plain.txt", std::string(2 << 20, 'p') + "\n\n" + std::string(1 << 20, 'q'));
    sources_ = find_sources({folder_ / "text"}).files;
  }

  PreparedDataset prepare(const std::string& name, const std::function<void(const PrepareProgress&)>& progress = {}) {
    return prepare_dataset(sources_, bytes_encoder(), folder_ / name, options_, progress);
  }

  void expect_equal(const std::string& a, const std::string& b) const {
    for (const char* suffix : {".bin", ".idx", ".quarantine.jsonl"})
      EXPECT_TRUE(read_file(folder_ / (a + suffix)) == read_file(folder_ / (b + suffix))) << suffix;
  }

  // The unfinished work that the folder contains.
  bool has_partial(const std::string& name) const {
    for (const auto& item : fs::directory_iterator((folder_ / name).parent_path()))
      if (item.path().filename().string().find(".partial.") != std::string::npos) return true;
    return false;
  }

  TempFolder folder_;
  std::vector<Source> sources_;
  PrepareOptions options_;
};

TEST_F(TokenizeCorpus, ContinuesFromTheLastPieceAfterAnError) {
  const PreparedDataset whole = prepare("whole/d");
  for (const int stop_after : {1, 3, 5}) {
    const std::string name = "again" + std::to_string(stop_after) + "/d";
    int calls = 0;
    const auto stop = [&](const PrepareProgress& at) {
      if (at.text_bytes > static_cast<uint64_t>(stop_after) << 20 && ++calls > 0) throw std::runtime_error("stop");
    };
    int stopped = 0;
    int64_t before = 0;
    for (bool done = false; !done;) {
      try {
        const PreparedDataset prepared = prepare(name, stop);
        EXPECT_EQ(prepared.tokens, whole.tokens);
        EXPECT_EQ(prepared.corpus.documents, whole.corpus.documents);
        EXPECT_EQ(prepared.corpus.empty_documents, whole.corpus.empty_documents);
        EXPECT_EQ(prepared.corpus.text_bytes, whole.corpus.text_bytes);
        EXPECT_EQ(prepared.corpus.rows, whole.corpus.rows);
        EXPECT_EQ(prepared.corpus.bad_rows, 27);
        EXPECT_GE(prepared.resumed_tokens, before);
        before = prepared.resumed_tokens;
        done = true;
      } catch (const std::runtime_error&) {
        ASSERT_LT(++stopped, 20) << "no progress";
        EXPECT_TRUE(has_partial(name));
      }
    }
    EXPECT_GT(stopped, 0);
    EXPECT_GT(before, 0);
    EXPECT_FALSE(has_partial(name));
    expect_equal("whole/d", name);
  }
}

// Kills the process at calls of the progress callback, again and again, until it has finished.
TEST_F(TokenizeCorpus, ContinuesAfterKills) {
  prepare("whole/d");
  int kills = 0;
  for (bool done = false; !done;) {
    const pid_t child = fork();
    if (child == 0) {
      int calls = 0;
      try {
        prepare("killed/d", [&](const PrepareProgress&) {
          if (++calls > 3) kill(getpid(), SIGKILL);
        });
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
      ASSERT_LT(++kills, 30) << "no progress";
      continue;
    }
    ASSERT_EQ(WEXITSTATUS(status), 0);
    done = true;
  }
  EXPECT_GT(kills, 1);
  EXPECT_FALSE(has_partial("killed/d"));
  expect_equal("whole/d", "killed/d");
}

// Rows of a table count if at least one of the columns has a text.
TEST_F(TokenizeCorpus, ContinuesWithSeveralColumns) {
  sources_.clear();
  for (const char* table : {"pages.parquet", "stream_zstd.arrow", "encodings/zstd_plain_v2.parquet"})
    for (const Source& source : find_sources({golden("tables") / table}).files) sources_.push_back(source);
  options_.piece_bytes = 1;
  options_.corpus.bad_row_share = 0.9;
  options_.corpus.json_key = "meta.title";
  options_.corpus.other_keys = {"text"};
  const PreparedDataset whole = prepare("whole/d");
  EXPECT_GT(whole.corpus.bad_rows, 3);
  options_.threads = 3;
  int stopped = 0;
  for (bool done = false; !done;) try {
      int calls = 0;
      const PreparedDataset prepared = prepare("again/d", [&](const PrepareProgress& at) {
        if (at.text_bytes > 0 && ++calls > 1) throw std::runtime_error("stop");
      });
      EXPECT_GT(prepared.resumed_tokens, 0);
      EXPECT_EQ(prepared.corpus.bad_rows, whole.corpus.bad_rows);
      done = true;
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "stop");
      ASSERT_LT(++stopped, 10) << "no progress";
    }
  EXPECT_GT(stopped, 0);
  expect_equal("whole/d", "again/d");
}

TEST_F(TokenizeCorpus, IsIndependentOfThreadsAndPieces) {
  prepare("one/d");
  options_.threads = 4;
  prepare("four/d");
  options_.piece_bytes = 1 << 30;
  prepare("unbroken/d");
  expect_equal("one/d", "four/d");
  expect_equal("one/d", "unbroken/d");
}

TEST_F(TokenizeCorpus, DropsUnfinishedWorkOnAnotherText) {
  int calls = 0;
  EXPECT_THROW(prepare("d",
                       [&](const PrepareProgress&) {
                         if (++calls > 3) throw std::runtime_error("stop");
                       }),
               std::runtime_error);
  EXPECT_TRUE(has_partial("d"));
  put(folder_ / "text/0.jsonl", "{\"text\": \"other\"}\n");
  sources_ = find_sources({folder_ / "text"}).files;
  int told = 0;
  options_.dropping = [&] { told += has_partial("d") ? 1 : 100; };
  EXPECT_EQ(prepare("d").resumed_tokens, 0);
  EXPECT_EQ(told, 1) << "before it is deleted";
  prepare("whole");
  expect_equal("whole", "d");
  EXPECT_EQ(told, 1) << "there was nothing to drop";
}

TEST_F(TokenizeCorpus, DropsUnfinishedWorkWithOtherPatterns) {
  options_.selection.include = {"*.jsonl"};
  int calls = 0, told = 0;
  const auto stop = [&](const PrepareProgress&) {
    if (++calls > 3) throw std::runtime_error("stop");
  };
  EXPECT_THROW(prepare("d", stop), std::runtime_error);
  options_.dropping = [&] { ++told; };
  calls = 0;
  EXPECT_THROW(prepare("d", stop), std::runtime_error);
  EXPECT_EQ(told, 0) << "the same patterns continue";
  options_.selection.exclude = {"drafts/"};
  EXPECT_EQ(prepare("d").resumed_tokens, 0);
  EXPECT_EQ(told, 1);
}

TEST_F(TokenizeCorpus, IgnoresADamagedRecord) {
  int calls = 0;
  EXPECT_THROW(prepare("d",
                       [&](const PrepareProgress&) {
                         if (++calls > 3) throw std::runtime_error("stop");
                       }),
               std::runtime_error);
  put(folder_ / "d.partial.json", "{");
  int told = 0;
  options_.dropping = [&] { ++told; };
  EXPECT_EQ(prepare("d").resumed_tokens, 0);
  EXPECT_EQ(told, 1);
}

TEST_F(TokenizeCorpus, KeepsWorkThatCanContinue) {
  options_.dropping = [] { FAIL() << "it was started with the same options"; };
  int calls = 0;
  EXPECT_THROW(prepare("d",
                       [&](const PrepareProgress&) {
                         if (++calls > 3) throw std::runtime_error("stop");
                       }),
               std::runtime_error);
  prepare("d");
}

TEST_F(TokenizeCorpus, CompleteShardsLeaveNoOtherFiles) {
  prepare("d");
  for (const char* suffix : {".partial.json", ".partial.lengths", ".partial.lock"})
    put(folder_ / (std::string("d") + suffix), "left");
  EXPECT_TRUE(prepare("d").reused);
  EXPECT_FALSE(has_partial("d"));
}

TEST_F(TokenizeCorpus, RefusesASecondProcess) {
  const auto inner = [&](const PrepareProgress&) {
    EXPECT_THAT(message_of<IoError>([&] { prepare("d"); }), HasSubstr("another process is preparing these shards"));
    throw std::runtime_error("stop");
  };
  EXPECT_THROW(prepare("d", inner), std::runtime_error);
  EXPECT_GT(prepare("d").tokens, 0);
}

TEST_F(TokenizeCorpus, EmptyDocumentsKeepTheirNumbers) {
  sources_.clear();
  put(folder_ / "few/a.jsonl", "{\"text\": \"\"}\n{\"text\": \"x\"}\n{\"text\": \"\"}\n");
  sources_ = find_sources({folder_ / "few"}).files;
  const PreparedDataset prepared = prepare("few/d");
  EXPECT_EQ(prepared.corpus.empty_documents, 2);
  const IndexedDataset shards(prepared.prefix);
  EXPECT_EQ(shards.documents(), 3);
  EXPECT_EQ(shards.sequences(), 1);
}

}  // namespace
}  // namespace witan
