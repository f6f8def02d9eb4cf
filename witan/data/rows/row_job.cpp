#include "witan/data/rows/row_job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/data/rows/work_folder.h"
#include "witan/data/text/quarantine.h"

namespace witan {
namespace {

struct Stored {
  size_t rows, row_bytes;
};
constexpr Stored kStored = {static_cast<size_t>(QuarantineLimits{}.rows), QuarantineLimits{}.row_bytes};

std::pair<size_t, int64_t> place_of(const nlohmann::json& row) {
  return {static_cast<size_t>(json_integer(row.at("source"))), json_integer(row.at("line"))};
}

nlohmann::json describe_made(const MadeRows& made) {
  nlohmann::json files = nlohmann::json::array();
  for (const MadeFile& file : made.files) files.push_back({{"bytes", file.bytes}, {"rows", file.rows}});
  return {{"rows", made.rows}, {"bad_rows", made.bad_rows}, {"files", std::move(files)}};
}

}  // namespace

nlohmann::json rows_key(const std::vector<Source>& sources, const RowOptions& options) {
  return {{"sources", sources_key(sources)},
          {"text_key", options.text_key},
          {"replace_invalid_utf8", options.replace_invalid_utf8},
          {"row_bytes", options.row_bytes},
          {"document_bytes", options.document_bytes}};
}

void UnusableRows::add(size_t source, const UnusableRow& row) {
  ++count_;
  if (fresh_.size() >= kStored.rows) return;
  if (kept_.size() >= kStored.rows && std::pair(source, row.position) > place_of(kept_.back())) return;
  fresh_.push_back({{"source", source},
                    {"line", row.position},
                    {"reason", replace_invalid_utf8(row.reason)},
                    {"row", replace_invalid_utf8(row.text.substr(0, kStored.row_bytes))}});
}

void UnusableRows::keep(const nlohmann::json& rows) {
  kept_.insert(kept_.end(), rows.begin(), rows.end());
  std::ranges::sort(kept_, {}, place_of);
  if (kept_.size() > kStored.rows) kept_.resize(kStored.rows);
}

void UnusableRows::restore(const nlohmann::json& entry) {
  const int64_t count = json_integer(entry.at("count"));
  count_ += count;
  taken_ += count;
  keep(entry.at("rows"));
}

nlohmann::json UnusableRows::take() {
  nlohmann::json entry = {{"count", count_ - taken_}, {"rows", std::move(fresh_)}};
  fresh_ = nlohmann::json::array();
  taken_ = count_;
  keep(entry.at("rows"));
  return entry;
}

fs::path UnusableRows::judge(const fs::path& path, const std::vector<Source>& sources, int64_t rows,
                             const RowOptions& options) {
  Quarantine quarantine(path);
  for (const auto& row : kept_)
    quarantine.add(sources[static_cast<size_t>(json_integer(row.at("source"), 0, std::ssize(sources) - 1))].path,
                   json_integer(row.at("line")), row.at("reason").get<std::string>(), row.at("row").get<std::string>());
  quarantine.close();
  const std::string key =
      options.text_key.empty() ? "" : cat("; the text is read from the key ", clipped(options.text_key));
  require<TooManyUnusableRows>(
      static_cast<double>(count_) <= options.bad_row_share * static_cast<double>(rows) && (rows == 0 || count_ < rows),
      count_, " of ", rows, " rows are unusable (limit ", 100 * options.bad_row_share, " %, see --bad-row-share", key,
      "); the first is ", quarantine.first(), "; see ", path.string());
  require<DataError>(rows > 0, "found no document in ", counted(static_cast<int64_t>(sources.size()), "file"));
  return quarantine.kept() > 0 ? path : fs::path();
}

MadeRows continue_rows(const fs::path& output, const std::function<MadeRows()>& run) try {
  return run();
} catch (const nlohmann::json::exception& error) {
  WorkFolder::throw_damaged(unfinished_folder(output), error.what());
}

fs::path unfinished_folder(const fs::path& output) {
  return hidden_beside(output, ".unfinished");
}

std::optional<MadeRows> RowJob::find_made(const fs::path& output, const Parts& parts, const nlohmann::json& key) try {
  const nlohmann::json description = MadeRecord(output).find(key);
  if (description.is_null()) return std::nullopt;
  MadeRows made;
  made.reused = true;
  description.at("rows").get_to(made.rows);
  description.at("bad_rows").get_to(made.bad_rows);
  if (made.bad_rows > 0) made.quarantine = quarantine_beside(output);
  for (size_t i = 0; i < parts.files().size(); ++i) {
    const nlohmann::json& file = description.at("files").at(i);
    made.files.push_back(
        {parts.files()[i].path, static_cast<uint64_t>(json_integer(file.at("bytes"))), json_integer(file.at("rows"))});
  }
  return made;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

RowJob::RowJob(const fs::path& output, const Parts& parts, const nlohmann::json& key)
    : output_(output), parts_(parts), key_(key), record_(output), work_(unfinished_folder(output), key) {
  continued_ = settled_ = !work_.journal().empty();
  written_ = continued_ && work_.journal().back().contains("written");
  if (written_) {
    MadeRows made;
    describe(made, work_.journal().back().at("written"));  // what is no such entry is found now
    return;
  }
  std::vector<fs::path> beside;  // of what has been begun already, it may be its own
  if (!continued_) beside.push_back(quarantine_beside(output));
  try {
    record_.require_free(paths_of_files(), beside);
  } catch (const ConfigError&) {
    if (!settled_) remove();
    throw;
  }
}

RowJob::~RowJob() {
  if (settled_) return;
  try {
    remove();
  } catch (const Error&) {  // an error is on its way already
  }
}

MadeRows RowJob::run(const std::function<MadeRows()>& work) try {
  return work();
} catch (const TooManyUnusableRows& error) {
  throw DataError(error.what() + keep());
} catch (const DiskFullError& error) {
  throw DiskFullError(error.what() + keep());
} catch (const IoError& error) {
  throw IoError(error.what() + keep(), error.code());
} catch (const fs::filesystem_error& error) {
  throw IoError(error.what() + keep());
} catch (const nlohmann::json::exception&) {  // the journal is inconsistent
  throw;
} catch (...) {  // of the sources or the options: with others nothing that is done would count
  settled_ = false;
  throw;
}

// The end of a message, if there is something to keep.
std::string RowJob::keep() {
  settled_ = !work_.journal().empty();
  return settled_
             ? cat("; what is done is kept in ", work_.path().string(), ", and the same command continues from there")
             : std::string();
}

void RowJob::remove() {
  std::error_code ignored;
  if (!runs_folder_.empty()) fs::remove_all(runs_folder_, ignored);
  work_.remove();
}

std::vector<fs::path> RowJob::paths_of_files() const {
  std::vector<fs::path> paths;
  for (const Parts::File& file : parts_.files()) paths.push_back(file.path);
  return paths;
}

fs::path RowJob::stream_path(int64_t stream) const {
  return work_ / cat("part-", stream);
}

void RowJob::open_outputs(const nlohmann::json& state) {
  const auto streams = static_cast<size_t>(parts_.streams());
  std::vector<uint64_t> sizes(streams, 0);
  rows_.assign(streams, 0);
  if (!state.is_null()) {
    for (size_t stream = 0; stream < streams; ++stream) {
      sizes[stream] = static_cast<uint64_t>(json_integer(state.at("sizes").at(stream)));
      rows_[stream] = json_integer(state.at("rows").at(stream));
    }
  }
  rank_ = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
  streams_.reserve(streams);
  for (size_t stream = 0; stream < streams; ++stream)
    streams_.emplace_back(stream_path(static_cast<int64_t>(stream)), sizes[stream]);
}

void RowJob::append(std::string_view row) {
  const auto stream = static_cast<size_t>(parts_.stream_of(rank_++));
  streams_[stream].append(row);
  streams_[stream].append("\n");
  ++rows_[stream];
}

nlohmann::json RowJob::checkpoint() {
  nlohmann::json sizes = nlohmann::json::array();
  for (GrowingFile& stream : streams_) {
    stream.sync();
    sizes.push_back(stream.size());
  }
  return {{"sizes", std::move(sizes)}, {"rows", rows_}};
}

void RowJob::lay_end_to_end(const Parts::File& file) const {
  AtomicFile whole(file.path);
  for (const int64_t stream : file.streams) {
    const MappedFile piece(stream_path(stream));
    whole.write(piece.bytes().data(), piece.bytes().size());
  }
  whole.commit();
}

void RowJob::describe(MadeRows& made, const nlohmann::json& state) const {
  for (const Parts::File& file : parts_.files()) {
    MadeFile one{file.path, 0, 0};
    for (const int64_t stream : file.streams) {
      const auto at = static_cast<size_t>(stream);
      one.bytes += static_cast<uint64_t>(json_integer(state.at("sizes").at(at)));
      one.rows += json_integer(state.at("rows").at(at));
    }
    made.rows += one.rows;
    made.files.push_back(std::move(one));
  }
}

void RowJob::judge(UnusableRows& bad, int64_t rows, const std::vector<Source>& sources, const RowOptions& options) {
  const fs::path list = quarantine_beside(output_);
  try {
    quarantine_ = bad.judge(list, sources, rows + bad.count(), options);
    bad_rows_ = bad.count();
    require<DataError>(rows >= parts_.least_rows(), counted(rows, "row"), " cannot fill ",
                       counted(static_cast<int64_t>(parts_.files().size()), "file"), ": ", parts_.least_rows(),
                       " are needed; give more, or smaller --chunks or --valid");
  } catch (const DataError&) {
    if (fs::exists(list)) record_.write(nullptr, nullptr, {}, {list});
    throw;
  }
}

// A kill at any place leaves what the next call goes on with: a stream is there under one of its two names.
MadeRows RowJob::publish() {
  if (!written_) work_.record({{"written", checkpoint()}});
  streams_.clear();
  MadeRows made;
  made.continued = continued_;
  made.bad_rows = bad_rows_;
  made.quarantine = quarantine_;
  describe(made, work_.journal().back().at("written"));
  for (const Parts::File& file : parts_.files()) {
    const fs::path first = stream_path(file.streams.front());
    std::error_code error;
    if (file.streams.size() > 1)
      lay_end_to_end(file);
    else if (fs::exists(first))
      fs::rename(first, file.path, error);
    if (error) throw_io_error("cannot finish", file.path, error.value());
  }
  fsync_folder(output_.parent_path());
  record_.write(key_, describe_made(made), paths_of_files(), {quarantine_beside(output_)});
  remove();
  settled_ = true;
  return made;
}

namespace {

class RowCopy {
 public:
  RowCopy(const std::vector<Source>& sources, const fs::path& output, const Parts& parts, const CopyOptions& options,
          const nlohmann::json& key, const ReportRowProgress& progress)
      : sources_(sources), options_(options), progress_(progress), job_(output, parts, key) {
    for (const Source& source : sources) total_ += source.bytes;
  }

  MadeRows run() {
    return job_.run([this] { return copy(); });
  }

 private:
  MadeRows copy() {
    const nlohmann::json state = restore();
    if (!job_.written()) {
      require_room(job_.work().path(), expanded_bytes(sources_), "the rows");
      job_.open_outputs(state);
      for (; source_ < sources_.size(); ++source_, position_ = 0) read();
      record();
    }
    job_.judge(bad_, rows_, sources_, options_.rows);
    return job_.publish();
  }

  // The state of the files that the journal ends with.
  nlohmann::json restore() {
    nlohmann::json state;
    for (const nlohmann::json& entry : job_.work().journal()) {
      if (entry.contains("written")) break;
      source_ = static_cast<size_t>(json_integer(entry.at("source"), 0, std::ssize(sources_)));
      position_ = json_integer(entry.at("position"));
      rows_ = json_integer(entry.at("rank"));
      bad_.restore(entry.at("bad"));
      state = entry.at("files");
    }
    for (size_t done = 0; done < std::min(source_, sources_.size()); ++done) finished_bytes_ += sources_[done].bytes;
    return state;
  }

  void read() {
    RowReader reader(options_.rows);
    const auto visit = [&](const Row& row) {
      job_.append(row.text);
      ++rows_;
      position_ = row.position;
      fresh_bytes_ += row.text.size();
      if (progress_ && (job_.rank() & 0xFF) == 0) progress_({"writing", finished_bytes_ + row.source_bytes, total_});
      if (fresh_bytes_ >= options_.checkpoint_bytes) record();
    };
    reader.read(sources_[source_], position_, visit, [&](const UnusableRow& row) {
      bad_.add(source_, row);
      position_ = std::max(position_, row.position);
    });
    finished_bytes_ += sources_[source_].bytes;
  }

  void record() {
    job_.work().record({{"source", source_},
                        {"position", position_},
                        {"rank", job_.rank()},
                        {"bad", bad_.take()},
                        {"files", job_.checkpoint()}});
    fresh_bytes_ = 0;
  }

  const std::vector<Source>& sources_;
  const CopyOptions& options_;
  const ReportRowProgress& progress_;
  RowJob job_;
  UnusableRows bad_;
  size_t source_ = 0;
  int64_t position_ = 0;  // of the source, that all is done up to
  int64_t rows_ = 0;      // usable ones so far
  uint64_t fresh_bytes_ = 0, finished_bytes_ = 0, total_ = 0;
};

}  // namespace

MadeRows copy_rows(const std::vector<Source>& sources, const fs::path& output, const CopyOptions& options,
                   const ReportRowProgress& progress) {
  const Parts parts(output, options.parts);
  parts.require_apart_from(sources);
  nlohmann::json key = rows_key(sources, options.rows);
  key["parts"] = {{"chunks", options.parts.chunks},
                  {"valid", options.parts.valid},
                  {"fractions", options.parts.fractions},
                  {"seed", options.parts.fractions.empty() ? 0 : options.parts.seed}};
  if (auto made = RowJob::find_made(output, parts, key)) return *made;
  return continue_rows(output, [&] { return RowCopy(sources, output, parts, options, key, progress).run(); });
}

}  // namespace witan
