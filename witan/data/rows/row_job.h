// One command that writes files of rows: what it is asked to do, its unfinished files, and their publication.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/rows/parts.h"
#include "witan/data/rows/row_reader.h"
#include "witan/data/rows/work_folder.h"

namespace witan {

struct MadeFile {
  fs::path path;
  uint64_t bytes = 0;
  int64_t rows = 0;
};

struct MadeRows {
  bool reused = false;     // files that an earlier call of the same command has made
  bool continued = false;  // of what an earlier process had begun
  int64_t rows = 0;        // in all files
  int64_t bad_rows = 0;    // unusable ones, left out
  std::vector<MadeFile> files;
  fs::path quarantine;  // a file with the first of the unusable rows; empty: there are none
};

struct RowProgress {
  const char* phase = "";        // "reading", "writing"
  uint64_t done = 0, total = 0;  // bytes
};
using ReportRowProgress = std::function<void(const RowProgress&)>;

// What the rows depend on: the sources (path, size, time of the last change) and how they are read.
nlohmann::json rows_key(const std::vector<Source>& sources, const RowOptions& options);

// Unusable rows as a journal keeps them: all are counted, the first ones stored.
class UnusableRows {
 public:
  void add(size_t source, const UnusableRow& row);
  // Adds those of a journal's entry. Throws nlohmann::json::exception for what is none.
  void restore(const nlohmann::json& entry);
  // What has come since the last call, for the next entry.
  nlohmann::json take();

  int64_t count() const { return count_; }
  // Writes the file of the first ones, in the order of sources and lines, whoever found them first. Throws DataError
  // if their share of `rows`, all that were read, is too large.
  fs::path judge(const fs::path& path, const std::vector<Source>& sources, int64_t rows, const RowOptions& options);

 private:
  void keep(const nlohmann::json& rows);

  int64_t count_ = 0, taken_ = 0;
  nlohmann::json fresh_ = nlohmann::json::array();
  std::vector<nlohmann::json> kept_;  // by source and line, at most as many as a quarantine stores
};

// Runs a job that goes on where the journal beside `output` ends. What cannot be continued from there, which the job
// finds by nlohmann::json::exception, is a CorruptionError with the way out.
MadeRows continue_rows(const fs::path& output, const std::function<MadeRows()>& run);

// Not thread-safe.
class RowJob {
 public:
  // Takes up what an earlier process of the same `key` left beside `output`. Throws ConfigError if a file that it is to
  // write exists already; DataError if another process writes it.
  RowJob(const fs::path& output, const Parts& parts, const nlohmann::json& key);

  // Files that an earlier process of this key has made and that are as it left them.
  static std::optional<MadeRows> find_made(const fs::path& output, const Parts& parts, const nlohmann::json& key);

  WorkFolder& work() { return work_; }
  bool continued() const { return continued_; }
  // Whether an earlier process has written all rows, and only publish() is left.
  bool written() const { return written_; }

  // The unfinished files. Those of an earlier process are cut back to `state`, which checkpoint() gave it.
  void open_outputs(const nlohmann::json& state);
  void append(std::string_view row);  // to the file of the next rank, with a line end
  int64_t rank() const { return rank_; }
  // Makes the rows so far durable; what open_outputs() needs to go on from here.
  nlohmann::json checkpoint();

  // Gives the files their names and removes the unfinished work. `bad_rows` of all that were read.
  MadeRows publish(int64_t bad_rows, const fs::path& quarantine);

 private:
  fs::path stream_path(int64_t stream) const;
  void lay_end_to_end(const Parts::File& file) const;
  void describe(MadeRows& made, const nlohmann::json& state) const;

  const fs::path output_;
  const Parts& parts_;
  const nlohmann::json key_;
  WorkFolder work_;
  bool continued_ = false, written_ = false;
  std::vector<GrowingFile> streams_;
  std::vector<int64_t> rows_;  // in each stream
  int64_t rank_ = 0;
};

}  // namespace witan
