// PREFIX.partial.json: how far the preparation of token shards has come, so that a killed one continues.
// docs/formats/indexed_dataset.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "witan/data/corpus/corpus.h"

namespace witan {

// A complete piece: the reading of the corpus began at `start`, `visited` documents came from there on, and the shards
// hold them and all before.
struct PieceEnd {
  CorpusStart start;
  int64_t visited = 0;
  int64_t documents = 0, tokens = 0;  // of the shards
  // Set once the corpus has been read to its end.
  std::optional<CorpusStatistics> statistics = {};
};

// Holds a lock on PREFIX as long as it lives.
class PreparationJournal {
 public:
  // `key` identifies what the shards are made from. Throws IoError, also if another process prepares the same shards.
  PreparationJournal(const fs::path& prefix, const nlohmann::json& key);
  ~PreparationJournal();
  PreparationJournal(const PreparationJournal&) = delete;
  PreparationJournal& operator=(const PreparationJournal&) = delete;

  // The last piece, if it was made from the same. A damaged record counts as none.
  std::optional<PieceEnd> find();
  // Whether there is a record at all.
  bool exists() const;
  // The shards must be on the disk before. Throws IoError or DiskFullError.
  void write(const PieceEnd& end);
  // Removes the record.
  void remove();

 private:
  fs::path path_, rows_path_, lock_path_;
  std::string key_;
  std::shared_ptr<const std::string> kept_rows_;  // as they lie in rows_path_
  int lock_ = -1;
};

}  // namespace witan
