#include "witan/data/prepare/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr const char* kJournalFormat = "witan-partial-shards";
constexpr int kJournalVersion = 1;

nlohmann::json numbers_of(const CorpusStatistics& s) {
  return {{"documents", s.documents},   {"empty_documents", s.empty_documents},
          {"text_bytes", s.text_bytes}, {"rows", s.rows},
          {"bad_rows", s.bad_rows},     {"replaced", s.replaced}};
}

CorpusStatistics statistics_of(const nlohmann::json& from) {
  CorpusStatistics s;
  s.documents = json_integer(from.at("documents"));
  s.empty_documents = json_integer(from.at("empty_documents"));
  s.text_bytes = static_cast<uint64_t>(json_integer(from.at("text_bytes")));
  s.rows = json_integer(from.at("rows"));
  s.bad_rows = json_integer(from.at("bad_rows"));
  s.replaced = json_integer(from.at("replaced"));
  return s;
}

nlohmann::json record_of(const PieceEnd& end, const std::string& key) {
  const QuarantineState& quarantine = end.start.quarantine;
  nlohmann::json record = {{"format", kJournalFormat},
                           {"version", kJournalVersion},
                           {"key", key},
                           {"source", end.start.source},
                           {"visited", end.visited},
                           {"statistics", numbers_of(end.start.statistics)},
                           {"quarantine",
                            {{"count", quarantine.count},
                             {"kept", quarantine.kept},
                             {"first", replace_invalid_utf8(quarantine.first)},
                             {"bytes", quarantine.rows ? quarantine.rows->size() : 0}}},
                           {"documents", end.documents},
                           {"tokens", end.tokens}};
  if (end.statistics) record["end"] = numbers_of(*end.statistics);
  return record;
}

PieceEnd piece_of(const nlohmann::json& record, const fs::path& rows_path) {
  PieceEnd end;
  end.start.source = static_cast<size_t>(json_integer(record.at("source")));
  end.visited = json_integer(record.at("visited"));
  end.start.statistics = statistics_of(record.at("statistics"));
  const nlohmann::json& quarantine = record.at("quarantine");
  end.start.quarantine.count = json_integer(quarantine.at("count"));
  end.start.quarantine.kept = json_integer(quarantine.at("kept"));
  quarantine.at("first").get_to(end.start.quarantine.first);
  // More may lie there than at the time of the record.
  if (const auto bytes = static_cast<size_t>(json_integer(quarantine.at("bytes"))); bytes > 0) {
    std::string rows = read_file(rows_path);
    require<CorruptionError>(rows.size() >= bytes, rows_path.string(), " is shorter than its record says");
    rows.resize(bytes);
    end.start.quarantine.rows = std::make_shared<const std::string>(std::move(rows));
  }
  end.documents = json_integer(record.at("documents"));
  end.tokens = json_integer(record.at("tokens"));
  if (record.contains("end")) end.statistics = statistics_of(record.at("end"));
  return end;
}

// Removes the temporary files that killed processes left.
void remove_temporary_files(const fs::path& prefix) {
  static constexpr std::array<const char*, 8> kOurs = {
      ".partial.json", ".partial.quarantine.jsonl", ".json", ".quarantine.jsonl", ".idx", ".loss.idx", ".bin",
      ".loss.bin"};
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  std::error_code none;
  std::vector<fs::path> left;
  for (const auto& item : fs::directory_iterator(folder, none))
    for (const char* suffix : kOurs)
      if (item.path().filename().string().starts_with(cat(".tmp-", prefix.filename().string(), suffix, ".")))
        left.push_back(item.path());
  for (const fs::path& path : left) fs::remove(path, none);
}

int locked(const fs::path& path) {
  create_folders(path.parent_path());
  const int fd = open_own_file(path, O_RDWR);
  // Some file systems have no locks: there the caller must exclude other writers.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(fd);
    throw IoError(cat("another process is preparing these shards: it holds ", path.string(),
                      "; wait for it, or choose another output"));
  }
  struct stat status {};
  if (::fstat(fd, &status) == 0 && status.st_nlink > 0) return fd;
  ::close(fd);
  throw IoError(cat("another process has just prepared these shards (", path.string(), "): run the command again"));
}

}  // namespace

PreparationJournal::PreparationJournal(const fs::path& prefix, const nlohmann::json& key)
    : path_(prefix.string() + ".partial.json"),
      rows_path_(prefix.string() + ".partial.quarantine.jsonl"),
      lock_path_(prefix.string() + ".partial.lock") {
  const std::string text = key.dump();
  key_ = hash_hex(text.data(), text.size());
  lock_ = locked(lock_path_);
  remove_temporary_files(prefix);
}

PreparationJournal::~PreparationJournal() {
  // While it is locked, so that no other process's file is removed.
  ::unlink(lock_path_.c_str());
  ::close(lock_);
}

std::optional<PieceEnd> PreparationJournal::find() try {
  const nlohmann::json record = parse_json(read_file(path_), path_.string());
  if (record.at("format") != kJournalFormat || record.at("version") != kJournalVersion || record.at("key") != key_)
    return std::nullopt;
  PieceEnd end = piece_of(record, rows_path_);
  kept_rows_ = end.start.quarantine.rows;
  return end;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
} catch (const CorruptionError&) {
  return std::nullopt;
} catch (const IoError&) {
  return std::nullopt;
}

bool PreparationJournal::exists() const {
  std::error_code none;
  return fs::exists(path_, none);
}

void PreparationJournal::write(const PieceEnd& end) {
  if (const auto& rows = end.start.quarantine.rows; rows && rows != kept_rows_) {
    write_file_atomically(rows_path_, *rows);
    kept_rows_ = rows;
  }
  write_file_atomically(path_, record_of(end, key_).dump() + "\n");
}

void PreparationJournal::remove() {
  std::error_code absent;
  fs::remove(path_, absent);
  fs::remove(rows_path_, absent);
}

}  // namespace witan
