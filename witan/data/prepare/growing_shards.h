// Token shards that grow piece by piece, so that a killed process goes on where its last piece ended.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "witan/base/files/growing_file.h"
#include "witan/data/datasets/indexed_dataset.h"

namespace witan {

// PREFIX.partial.bin with the tokens and PREFIX.partial.lengths with an int32 per document, until publish() makes
// PREFIX.bin and PREFIX.idx of them. Memory does not grow with the documents.
class GrowingShards {
 public:
  // Creates the folder if it is missing. Continues what lies there if `resume`, also with what a killed process was
  // publishing, else begins anew. Throws IoError.
  GrowingShards(const fs::path& prefix, int64_t vocab_size, bool resume);

  // Throws DataError for an id outside [0, vocab_size) or a document of 2^31 tokens or more.
  void add(std::span<const int32_t> document);

  int64_t documents() const { return static_cast<int64_t>(lengths_.size() / sizeof(int32_t)); }
  int64_t tokens() const { return static_cast<int64_t>(bin_.size()) / token_width(type_); }
  // Drops everything beyond. Throws CorruptionError if there is less.
  void cut(int64_t documents, int64_t tokens);
  // Everything lies on the disk afterwards.
  void sync();

  // Makes PREFIX.bin and PREFIX.idx, the latter last: a pair that has an .idx is complete. A document without tokens
  // has no sequence, only a boundary, as in what Megatron-LM's preprocess_data.py writes. Call once.
  void publish();
  // Whether the unpublished shards have at least this many documents and tokens.
  static bool hold(const fs::path& prefix, int64_t vocab_size, int64_t documents, int64_t tokens);
  // Removes unpublished shards.
  static void discard(const fs::path& prefix);

 private:
  void write_index(AtomicFile& idx) const;

  fs::path prefix_;
  int64_t vocab_size_;
  TokenType type_;
  GrowingFile bin_, lengths_;
  std::vector<uint16_t> narrow_;
};

}  // namespace witan
