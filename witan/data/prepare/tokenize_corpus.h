// Tokenizes a corpus into token shards on all cores, in pieces that survive a kill.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "witan/data/corpus/corpus.h"
#include "witan/data/prepare/growing_shards.h"
#include "witan/data/prepare/journal.h"

namespace witan {

struct TokenizeOptions {
  CorpusOptions corpus;
  int threads = 1;                  // that encode; one more reads. The result does not depend on it
  uint64_t piece_bytes = 32 << 20;  // of text: what is done again after a kill, at most
  int64_t vocab_size = 0;
  bool with_loss = false;                                               // also PREFIX.loss: of conversations
  std::function<EncodedConversation(const Conversation&)> encode = {};  // thread-safe
  std::function<void()> dropping = {};                                  // before what was begun otherwise is dropped
  std::function<void()> publishing = {};  // before the first file takes its name: what lay there is still whole
};

struct TokenizeProgress {
  uint64_t source_bytes = 0;          // on disk, tokenized
  uint64_t read_bytes = 0;            // on disk, read
  uint64_t text_bytes = 0;            // tokenized since this process began
  uint64_t resumed_bytes = 0;         // of source_bytes, how many an earlier process had done, about
  int64_t documents = 0, tokens = 0;  // of the shards
  int64_t resumed_tokens = 0;         // of those, how many an earlier process wrote
};

// Tokenizes a corpus to one output. Once constructed, it knows whether an earlier process has begun the same.
class CorpusTokenizer {
 public:
  // `key` identifies what the shards are made from. Work begun with another key is dropped. Throws IoError, also when
  // another process prepares the same output.
  CorpusTokenizer(fs::path prefix, const nlohmann::json& key, TokenizeOptions options);
  ~CorpusTokenizer();  // of work that ended before its first piece nothing is left

  // Writes PREFIX.bin and PREFIX.idx. `progress` is called at least four times a second. Throws what read_corpus()
  // throws, DiskFullError, and what `progress` throws: the complete pieces stay for the next call.
  CorpusStatistics run(const std::vector<Source>& sources,
                       const std::function<void(const TokenizeProgress&)>& progress);
  // Once the shards are recorded elsewhere: forgets how they were made.
  void finish();

  // Removes the temporary files beside complete shards of a process that was killed after it had recorded them.
  static void remove_left_overs(const fs::path& prefix);

  int64_t tokens() const { return shards_->tokens(); }
  // Tokens that an earlier process left.
  int64_t resumed_tokens() const { return resumed_ ? resumed_->tokens : 0; }

 private:
  std::optional<PieceEnd> unfinished();
  void write_piece(PieceEnd end);
  CorpusStatistics tokenize(const std::vector<Source>& sources,
                            const std::function<void(const TokenizeProgress&)>& progress);

  fs::path prefix_;
  TokenizeOptions options_;
  PreparationJournal journal_;
  std::optional<PieceEnd> resumed_;
  std::optional<GrowingShards> shards_, loss_;
  bool has_piece_ = false, finished_ = false;
};

}  // namespace witan
