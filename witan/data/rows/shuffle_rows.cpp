#include "witan/data/rows/shuffle_rows.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/numbers/rng.h"
#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"
#include "witan/data/rows/work_folder.h"

namespace witan {
namespace {

constexpr uint64_t kLeastShare = 1 << 16;
constexpr uint64_t kReportBytes = 1 << 20;

// Up to where a source is in runs.
struct SourceState {
  int64_t position = 0;
  bool complete = false;
};

class RowShuffle;

// One worker's rows on their way into runs.
class RunMaker {
 public:
  explicit RunMaker(RowShuffle& shuffle);
  void take(size_t source);
  void flush();

 private:
  void add(const Row& row);
  void end_part(bool complete);

  RowShuffle& shuffle_;
  RowReader reader_;
  RunBuffer buffer_;
  UnusableRows bad_;
  nlohmann::json parts_ = nlohmann::json::array();  // of sources, since the last run
  size_t source_ = 0;
  int64_t position_ = 0, rows_ = 0;  // of the present part
  uint64_t reported_ = 0;            // bytes of the present source
};

class RowShuffle {
 public:
  RowShuffle(const std::vector<Source>& sources, const fs::path& output, const Parts& parts,
             const ShuffleOptions& options, const nlohmann::json& key, const ReportRowProgress& progress)
      : sources_(sources),
        options_(options),
        progress_(progress),
        job_(output, parts, key),
        runs_folder_(job_.work().path()),
        states_(sources.size()),
        expanded_bytes_(expanded_bytes(sources)),
        budget_(std::max(options.memory / static_cast<uint64_t>(options.workers), kLeastShare)) {
    if (options.temp.empty()) return;
    const std::string name = fs::absolute(output).string();
    runs_folder_ = options.temp / cat(".witan-shuffle-", hash_hex(name.data(), name.size()));
    make_folder(runs_folder_);
    job_.set_runs_folder(runs_folder_);
  }

  MadeRows run() {
    return job_.run([this] { return shuffle(); });
  }

 private:
  friend class RunMaker;

  MadeRows shuffle() {
    restore();
    if (!job_.written()) require_disk();
    if (!job_.written() && !read_) read_sources();
    job_.judge(bad_, rows_, sources_, options_.rows);
    if (!job_.written()) write_sorted();
    return job_.publish();
  }

  void restore() {
    for (const nlohmann::json& entry : job_.work().journal()) {
      if (entry.contains("run")) take_up(entry);
      if (entry.contains("read")) read_ = true;
      if (!entry.contains("sorted")) continue;
      sorted_ = static_cast<uint32_t>(json_integer(entry.at("sorted"), 0, kKeyRanges));
      outputs_ = entry.at("files");
    }
    for (size_t i = 0; i < sources_.size(); ++i) {
      total_ += sources_[i].bytes;
      if (states_[i].complete) done_ += sources_[i].bytes;
    }
  }

  void take_up(const nlohmann::json& entry) {
    if (entry.at("run") != -1) {
      const int64_t run = json_integer(entry.at("run"));
      runs_.push_back(run_path(run));
      next_run_ = std::max(next_run_, run + 1);
    }
    for (const nlohmann::json& part : entry.at("parts")) {
      SourceState& state = states_[static_cast<size_t>(json_integer(part.at("source"), 0, std::ssize(states_) - 1))];
      state.position = json_integer(part.at("position"));
      state.complete = part.at("complete").get<bool>();
      rows_ += json_integer(part.at("rows"));
    }
    bad_.restore(entry.at("bad"));
  }

  fs::path run_path(int64_t run) const { return runs_folder_ / cat("run-", run); }

  void require_disk() {
    constexpr uint64_t kTableShare = 8;  // a run's table takes 24 bytes for each row, which has some 200 as a rule
    const uint64_t bytes = expanded_bytes_;
    const ShuffleRoom room{bytes + bytes / kTableShare, bytes, runs_folder_.parent_path(),
                           job_.work().path().parent_path()};
    if (options_.begins) options_.begins(room);
    const fs::path& folder = job_.work().path();
    if (on_one_disk(folder, runs_folder_))
      return require_room(folder, room.runs + room.output, "sorted runs and the output",
                          ", or give --temporary a folder on another disk");
    require_room(folder, room.output, "the rows");
    require_room(runs_folder_, room.runs, "sorted runs", ", or give --temporary another folder");
  }

  // Workers take one source after another.
  void read_sources() {
    AtomicFile::remove_left_overs(runs_folder_);
    ThreadPool pool(options_.workers);
    std::atomic<size_t> next{0};
    pool.run(options_.workers, [&](int64_t) {
      try {
        RunMaker maker(*this);
        for (size_t source; (source = next.fetch_add(1)) < sources_.size();)
          if (!states_[source].complete) maker.take(source);
        maker.flush();
      } catch (...) {
        failed_ = true;  // so that the others do not go on for hours
        throw;
      }
    });
    job_.work().record({{"read", true}});
  }

  void report(uint64_t fresh) {
    require<IoError>(!failed_, "another worker failed");  // whose error is the one that is shown
    const MutexLock lock(mutex_);
    done_ += fresh;
    if (progress_) progress_({"reading", done_, total_});
  }

  void record_run(int64_t run, nlohmann::json parts, nlohmann::json bad) {
    const MutexLock lock(mutex_);
    nlohmann::json entry = {{"run", run}, {"parts", std::move(parts)}, {"bad", std::move(bad)}};
    if (run >= 0) runs_.push_back(run_path(run));
    for (const nlohmann::json& part : entry.at("parts")) rows_ += part.at("rows").get<int64_t>();
    bad_.restore(entry.at("bad"));
    job_.work().record(std::move(entry));
  }

  int64_t take_run_number() {
    const MutexLock lock(mutex_);
    return next_run_++;
  }

  void write_sorted() {
    const SortedRuns runs(runs_);
    const std::vector<uint64_t> bytes = runs.measure();
    uint64_t total = 0, done = 0;
    for (uint32_t range = 0; range < kKeyRanges; ++range) {
      total += bytes[range];
      if (range < sorted_) done += bytes[range];
    }
    job_.open_outputs(outputs_);
    ThreadPool pool(options_.workers);
    while (sorted_ < kKeyRanges) {
      const std::vector<uint32_t> ends = next_slices(bytes);
      std::vector<RunSlice> slices(ends.size());
      pool.run(static_cast<int64_t>(ends.size()), [&](int64_t i) {
        const auto slice = static_cast<size_t>(i);
        slices[slice] = runs.load(slice == 0 ? sorted_ : ends[slice - 1], ends[slice]);
      });
      for (RunSlice& slice : slices) {
        for (size_t i = 0; i < slice.rows.size(); ++i) {
          job_.append(slice.row(i));
          done += slice.rows[i].size + kRowOverhead;
        }
        slice = {};
        if (progress_) progress_({"writing", done, total});
      }
      sorted_ = ends.back();
      job_.work().record({{"sorted", sorted_}, {"files", job_.checkpoint()}});
    }
  }

  // The ends of the next slices: one for each worker, each within its share of the memory unless one range is larger.
  std::vector<uint32_t> next_slices(const std::vector<uint64_t>& bytes) const {
    std::vector<uint32_t> ends;
    uint32_t at = sorted_;
    while (at < kKeyRanges && ends.size() < static_cast<size_t>(options_.workers)) {
      uint64_t held = bytes[at++];
      while (at < kKeyRanges && held + bytes[at] <= budget_) held += bytes[at++];
      ends.push_back(at);
    }
    return ends;
  }

  const std::vector<Source>& sources_;
  const ShuffleOptions& options_;
  const ReportRowProgress& progress_;
  RowJob job_;
  fs::path runs_folder_;
  std::vector<SourceState> states_;
  const uint64_t expanded_bytes_;  // about
  const uint64_t budget_;          // of memory, for each worker
  bool read_ = false;              // all sources are in runs
  uint32_t sorted_ = 0;            // ranges of keys that are written
  nlohmann::json outputs_;
  std::atomic<bool> failed_{false};

  // The results of concurrent workers, guarded by the mutex until the workers have ended.
  Mutex mutex_;
  std::vector<fs::path> runs_;
  int64_t next_run_ = 0, rows_ = 0;
  UnusableRows bad_;
  uint64_t done_ = 0, total_ = 0;  // bytes of sources
};

RunMaker::RunMaker(RowShuffle& shuffle)
    : shuffle_(shuffle), reader_(shuffle.options_.rows), buffer_(std::min(shuffle.budget_, shuffle.expanded_bytes_)) {}

void RunMaker::take(size_t source) {
  source_ = source;
  position_ = shuffle_.states_[source].position;
  rows_ = 0;
  reported_ = 0;
  const Source& file = shuffle_.sources_[source];
  reader_.read(
      file, position_, [&](const Row& row) { add(row); },
      [&](const UnusableRow& row) {
        bad_.add(source_, row);
        position_ = std::max(position_, row.position);
      });
  end_part(true);
  shuffle_.report(file.bytes - std::min(reported_, file.bytes));
}

void RunMaker::add(const Row& row) {
  if (buffer_.rows() > 0 && buffer_.bytes() + row.text.size() + kRowOverhead > shuffle_.budget_) {
    end_part(false);
    flush();
  }
  buffer_.add(shuffle_key(shuffle_.options_.seed, source_, row.position), row.text);
  ++rows_;
  position_ = row.position;
  if (row.source_bytes < reported_ + kReportBytes) return;
  shuffle_.report(row.source_bytes - reported_);
  reported_ = row.source_bytes;
}

void RunMaker::end_part(bool complete) {
  parts_.push_back({{"source", source_}, {"position", position_}, {"rows", rows_}, {"complete", complete}});
  rows_ = 0;
}

void RunMaker::flush() {
  if (parts_.empty()) return;
  const int64_t run = buffer_.rows() > 0 ? shuffle_.take_run_number() : -1;
  if (run >= 0) buffer_.write(shuffle_.run_path(run));
  shuffle_.record_run(run, std::exchange(parts_, nlohmann::json::array()), bad_.take());
}

}  // namespace

RowKey shuffle_key(uint64_t seed, size_t source, int64_t position) {
  const auto words = Philox(seed, source).block(static_cast<uint64_t>(position));
  return {uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]};
}

MadeRows shuffle_rows(const std::vector<Source>& sources, const fs::path& output, const ShuffleOptions& options,
                      const ReportRowProgress& progress) {
  require<ConfigError>(options.workers >= 1 && options.workers <= 4096, "--workers ", options.workers,
                       ": give 1 to 4096");
  const Parts parts(output, options.parts);
  parts.require_apart_from(sources);
  nlohmann::json key = rows_key(sources, options.rows);
  key["shuffle"] = {{"seed", options.seed},
                    {"chunks", options.parts.chunks},
                    {"valid", options.parts.valid},
                    {"temp", options.temp.empty() ? std::string() : fs::absolute(options.temp).string()}};
  if (auto made = RowJob::find_made(output, parts, key)) return *made;
  return continue_rows(output, [&] { return RowShuffle(sources, output, parts, options, key, progress).run(); });
}

}  // namespace witan
