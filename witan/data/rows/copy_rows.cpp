#include "witan/data/rows/copy_rows.h"

#include <algorithm>

#include "witan/base/json.h"
#include "witan/data/rows/work_folder.h"

namespace witan {
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
