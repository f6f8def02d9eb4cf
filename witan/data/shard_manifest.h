// PREFIX.json beside token shards: what they were made from, so that they are made once.
// docs/formats/indexed_dataset.md.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "witan/data/prepare.h"

namespace witan {

// What a corpus consists of, and how it is read: what all that is made from it depends on.
nlohmann::json sources_key(const std::vector<Source>& sources);
nlohmann::json options_key(const CorpusOptions& options);
// All that the tokens depend on.
nlohmann::json shard_key(const std::vector<Source>& sources, const TextEncoder& encoder, const CorpusOptions& options);

class ShardManifest {
 public:
  enum class Found { nothing, shards, everything };

  ShardManifest(const fs::path& prefix, nlohmann::json key);

  // everything: shards of this key are there and whole, and `prepared` has their statistics; shards: the same, but for
  // another split, so that the parts' sizes are not known. A manifest that cannot be read counts as none.
  Found find(const SplitOptions& split, PreparedDataset& prepared) const;
  void write(const SplitOptions& split, const PreparedDataset& prepared) const;
  void remove() const;

 private:
  nlohmann::json describe_files(bool with_bin_hash) const;

  fs::path prefix_, path_;
  nlohmann::json key_;
};

}  // namespace witan
