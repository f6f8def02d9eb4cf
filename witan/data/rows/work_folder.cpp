#include "witan/data/rows/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan {
namespace {

constexpr uint64_t kMostJournalBytes = uint64_t{1} << 34;

bool is_work_of(const fs::path& path, const nlohmann::json& key) try {
  return parse_json(read_file(path), path.string()) == key;
} catch (const CorruptionError&) {
  return false;
} catch (const IoError&) {
  return false;
}

}  // namespace

void make_folder(const fs::path& path) {
  create_folders(path);
  require<IoError>(::access(path.c_str(), W_OK) == 0, "cannot write in the folder ", path.string(), ": ",
                   std::strerror(errno));
}

WorkFolder::WorkFolder(fs::path path) : path_(std::move(path)) {
  make_folder(path_);
  lock();
}

WorkFolder::WorkFolder(fs::path path, const nlohmann::json& key) : WorkFolder(std::move(path)) {
  if (!is_work_of(path_ / "key.json", key)) {
    for (const auto& entry : fs::directory_iterator(path_))
      if (entry.path().filename() != "lock") fs::remove_all(entry.path());
    write_file_atomically(path_ / "key.json", key.dump(1) + "\n");
  }
  AtomicFile::remove_left_overs(path_);
  read_journal();
}

WorkFolder::~WorkFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void WorkFolder::lock() {
  const fs::path file = path_ / "lock";
  lock_ = open_own_file(file, O_RDWR);
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(std::exchange(lock_, -1));
  require<DataError>(error != EWOULDBLOCK, "another process is writing there, in ", path_.string(),
                     ": let it end, or give another --output");
  throw IoError(cat("cannot lock ", file.string(), ": ", std::strerror(error)));
}

// A process that was killed may have left a torn line at the end.
void WorkFolder::read_journal() {
  const fs::path path = path_ / "journal.jsonl";
  uint64_t whole = 0;
  if (fs::exists(path)) {
    const std::string text = read_file(path, kMostJournalBytes);
    for (size_t end; (end = text.find('\n', whole)) != std::string::npos; whole = end + 1) {
      const std::string where = cat("line ", journal_.size() + 1);
      try {
        journal_.push_back(parse_json(std::string_view(text).substr(whole, end - whole), where));
      } catch (const CorruptionError& error) {
        throw_damaged(path_, error.what());
      }
      if (!journal_.back().is_object()) throw_damaged(path_, where);
    }
  }
  file_ = std::make_unique<GrowingFile>(path, whole);
}

void WorkFolder::record(nlohmann::json entry) {
  file_->append(entry.dump() + "\n");
  file_->sync();
  journal_.push_back(std::move(entry));
}

void WorkFolder::throw_damaged(const fs::path& folder, const std::string& what) {
  throw CorruptionError(cat((folder / "journal.jsonl").string(), ": ", what,
                            ": the record of what is done is damaged; remove the folder ", folder.string(),
                            " to begin anew"));
}

void WorkFolder::remove() {
  file_.reset();
  std::error_code error;
  fs::remove_all(path_, error);
  require<IoError>(!error, "cannot remove ", path_.string(), ": ", error.message());
}

void require_room(const fs::path& folder, uint64_t bytes, const std::string& what, const std::string& way_out) {
  uint64_t held = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) held += entry.file_size();
  const uint64_t free = free_disk_bytes(folder);
  require<DiskFullError>(bytes <= free + held, what, " take about ", format_bytes(static_cast<double>(bytes)), ", and ",
                         folder.string(), " has room for ", format_bytes(static_cast<double>(free + held)),
                         ": free some space", way_out, " and give the same command again");
}

bool on_one_disk(const fs::path& a, const fs::path& b) {
  struct stat first {
  }, second{};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev;
}

}  // namespace witan
