// One command that writes files of rows: what it is asked to do, its unfinished files, and their publication.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/error.h"
#include "witan/data/rows/made_record.h"
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

// Identifies the rows: the sources (path, size, time of the last change) and how they are read.
nlohmann::json rows_key(const std::vector<Source>& sources, const RowOptions& options);

// The folder of unfinished work beside an output.
fs::path unfinished_folder(const fs::path& output);

// More unusable rows than are allowed: the same command continues where more are.
class TooManyUnusableRows : public DataError {
 public:
  using DataError::DataError;
};

// Unusable rows as a journal keeps them: all are counted, the first ones stored.
class UnusableRows {
 public:
  void add(size_t source, const UnusableRow& row);
  // Adds the rows of a journal's entry. Throws nlohmann::json::exception if it is malformed.
  void restore(const nlohmann::json& entry);
  // The rows since the last call, for the next entry.
  nlohmann::json take();

  int64_t count() const { return count_; }
  // Writes the file of the first ones, in the order of sources and lines, independent of threads. Throws
  // TooManyUnusableRows if their share of `rows`, all that were read, is too large; DataError if there are no rows.
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

// Not thread-safe. What it has begun is removed with it, unless it is of use to the same command.
class RowJob {
 public:
  // Takes up what an earlier process of the same `key` left beside `output`. Throws ConfigError if a file that it is to
  // write exists already; DataError if another process writes it.
  RowJob(const fs::path& output, const Parts& parts, const nlohmann::json& key);
  ~RowJob();
  RowJob(const RowJob&) = delete;
  RowJob& operator=(const RowJob&) = delete;

  // Files that an earlier process of this key has made and that are as it left them.
  static std::optional<MadeRows> find_made(const fs::path& output, const Parts& parts, const nlohmann::json& key);

  // Does all the work of the job, which ends with publish(). Where that fails and the same command can go on with what
  // is done, the error says so.
  MadeRows run(const std::function<MadeRows()>& work);

  WorkFolder& work() { return work_; }
  // A folder of temporary files elsewhere, that goes when the unfinished work goes.
  void set_runs_folder(const fs::path& folder) { runs_folder_ = folder; }
  bool continued() const { return continued_; }
  // Whether an earlier process has written all rows, and only publish() is left.
  bool written() const { return written_; }

  // The unfinished files. Those of an earlier process are cut back to `state`, which checkpoint() gave it.
  void open_outputs(const nlohmann::json& state);
  void append(std::string_view row);  // to the file of the next rank, with a line end
  int64_t rank() const { return rank_; }
  // Makes the rows so far durable; what open_outputs() needs to go on from here.
  nlohmann::json checkpoint();

  // Writes the unusable rows, or removes the list of an earlier call. `rows`: usable ones that were read. Throws
  // DataError if there are too many unusable ones, or too few rows for the files.
  void judge(UnusableRows& bad, int64_t rows, const std::vector<Source>& sources, const RowOptions& options);
  // Gives the files their names and removes the unfinished work. After judge().
  MadeRows publish();

 private:
  std::vector<fs::path> paths_of_files() const;
  std::string keep();
  void remove();
  fs::path stream_path(int64_t stream) const;
  void lay_end_to_end(const Parts::File& file) const;
  void describe(MadeRows& made, const nlohmann::json& state) const;

  const fs::path output_;
  const Parts& parts_;
  const nlohmann::json key_;
  const MadeRecord record_;
  WorkFolder work_;
  fs::path runs_folder_;
  bool continued_ = false, written_ = false;
  bool settled_ = false;  // the unfinished work is gone, or stays when the job goes
  int64_t bad_rows_ = 0;
  fs::path quarantine_;  // empty: there are no unusable rows
  std::vector<GrowingFile> streams_;
  std::vector<int64_t> rows_;  // in each stream
  int64_t rank_ = 0;
};

// Copies the rows of a corpus in their order, into one file (merge) or distributed to several (split).
struct CopyOptions {
  RowOptions rows;
  PartOptions parts;
  uint64_t checkpoint_bytes = 256 << 20;  // at most this much is written again after a kill
};

// Unusable rows are counted and kept in OUTPUT.quarantine.jsonl. What a killed process has begun goes on where it was,
// to the same bytes. Throws DataError for too many unusable rows or too few rows for the parts, ConfigError for files
// that exist, CorruptionError, IoError, DiskFullError.
MadeRows copy_rows(const std::vector<Source>& sources, const fs::path& output, const CopyOptions& options,
                   const ReportRowProgress& progress = {});

}  // namespace witan
