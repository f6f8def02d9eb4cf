// PREFIX.json next to token shards: a record of what they were made from, so that they are made only once.
// docs/formats/indexed_dataset.md.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/prepare/prepare.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

// The contents of a corpus and how it is read: everything made from it depends on these.
nlohmann::json sources_key(const std::vector<Source>& sources);
nlohmann::json options_key(const CorpusOptions& options);
// Everything that the tokens depend on.
nlohmann::json shard_key(const std::vector<Source>& sources, const TextEncoder& encoder, const PrepareOptions& options);

// The paths of the sources (as sources_key() has them) that the shards of this prefix were made from, if their manifest
// says so, and says of the files that are there how large they are.
std::optional<std::vector<std::string>> sources_of_shards(const fs::path& prefix);

// The tokenizer that the shards of this prefix were made with, under the same conditions.
struct ShardTokenizer {
  std::string hash;  // of Tokenizer::hash(), and what else the tokens depend on after it
  int64_t vocab_size = 0;
  std::string vocabulary;  // TextEncoder::vocabulary; empty in manifests of older versions
  std::string file;        // TextEncoder::file; likewise
};
std::optional<ShardTokenizer> tokenizer_of_manifest(const fs::path& prefix);

class ShardManifest {
 public:
  enum class Found { nothing, shards, everything };

  ShardManifest(const fs::path& prefix, nlohmann::json key);

  // everything: intact shards of this key exist, and `prepared` has their statistics; shards: the same, but for another
  // split, so that the sizes of the splits are not known. An unreadable manifest counts as none.
  Found find(const SplitOptions& split, PreparedDataset& prepared) const;
  // Why shards that lie there are not of this key, as far as their manifest says: options by their names, "rows.jsonl
  // has changed". Empty where nothing is known of shards that lie there.
  std::vector<std::string> changes() const;
  // The vocabulary and the file of `encoder` are not compared when shards are found again, since the tokens do not
  // depend on them.
  void write(const SplitOptions& split, const PreparedDataset& prepared, const TextEncoder& encoder) const;
  void remove() const;

 private:
  nlohmann::json describe_files(bool with_bin_hash) const;

  fs::path prefix_, path_;
  nlohmann::json key_;
};

struct TokenizerMismatch {
  bool certain = false;  // ids stand for other tokens; else it is not known, or only the division of text differs
  std::string message;   // names the shards and both tokenizers, and how they differ
  std::string own;       // the file of the shards' own tokenizer, if it lies beside them
};

// `shards`: PREFIX, PREFIX.bin or PREFIX.idx. `name`: that of the tokenizer, for the message. Nothing where the
// tokenizers are one, or the shards have no manifest that says which theirs is.
std::optional<TokenizerMismatch> find_tokenizer_mismatch(const fs::path& shards, const Tokenizer& tokenizer,
                                                         const std::string& name);

// Shards of the prefix may be made where nothing lies, where an earlier call has begun them (PREFIX.partial.*), and in
// the place of shards that prepare_dataset() has made of at least one of these sources, whatever has changed since.
// Throws ConfigError, with the way out, where a file of another origin would be overwritten, or one of the sources;
// `option`: the flag that names the prefix.
void check_own_shards(const fs::path& prefix, const std::vector<Source>& sources, const std::string& option);

}  // namespace witan
