#include "witan/fetch/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan::fetch {
namespace {

fs::path part_path(const fs::path& folder, const std::string& name) {
  return folder / (name + ".part");
}
fs::path ranges_path(const fs::path& folder, const std::string& name) {
  return folder / (name + ".ranges");
}

// Adds a range to sorted, disjoint ranges.
void add_range(std::vector<ByteRange>& ranges, ByteRange range) {
  if (range.begin >= range.end) return;
  std::vector<ByteRange> out;
  for (const ByteRange& other : ranges)
    if (other.end < range.begin || other.begin > range.end)
      out.push_back(other);
    else
      range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
  out.insert(std::ranges::upper_bound(out, range.begin, {}, &ByteRange::begin), range);
  ranges = std::move(out);
}

// Parses "BEGIN END"; nullopt for other text, which a power failure may leave.
std::optional<ByteRange> range_of(std::string_view line) {
  ByteRange range;
  const char* end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, range.begin);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, range.end);
  if (second.ec != std::errc() || second.ptr != end || range.begin >= range.end) return std::nullopt;
  return range;
}

// The recorded ranges; none if the journal is missing or inconsistent.
std::vector<ByteRange> recorded_ranges(const fs::path& journal, uint64_t size) {
  std::vector<ByteRange> ranges;
  if (!fs::exists(journal)) return ranges;
  const std::string text = read_file(journal);
  for (size_t begin = 0;;) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return ranges;
    const auto range = range_of(std::string_view(text).substr(begin, end - begin));
    if (!range || range->end > size) return {};
    add_range(ranges, *range);
    begin = end + 1;
  }
}

bool has_size(const fs::path& path, uint64_t size) {
  std::error_code error;
  return fs::file_size(path, error) == size && !error;
}

}  // namespace

PartFile::PartFile(const fs::path& folder, const std::string& name, uint64_t size)
    : path_(part_path(folder, name)), journal_path_(ranges_path(folder, name)), size_(size) {
  const bool usable = has_size(path_, size);
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file_.is_open()) throw_io_error("cannot open", path_, errno);
  const MutexLock lock(mutex_);
  journal_.emplace(journal_path_);
  if (usable) done_ = recorded_ranges(journal_path_, size);
  // Cuts the journal after its last complete line: lines after a torn one would not be read.
  journal_->cut(done_.empty() ? 0 : read_file(journal_path_).rfind('\n') + 1);
  if (!usable && ::ftruncate(file_.fd(), static_cast<off_t>(size)) != 0)
    throw_io_error("cannot make room for", path_, errno);
}

std::vector<ByteRange> PartFile::missing() const {
  const MutexLock lock(mutex_);
  std::vector<ByteRange> missing;
  uint64_t at = 0;
  for (const ByteRange& range : done_) {
    if (range.begin > at) missing.push_back({at, range.begin});
    at = range.end;
  }
  if (at < size_) missing.push_back({at, size_});
  return missing;
}

void PartFile::write(uint64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_io_error("cannot write", path_, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void PartFile::record(ByteRange range) {
  if (range.size() == 0) return;
  const MutexLock lock(mutex_);
  journal_->append(cat(range.begin, " ", range.end, "\n"));
  add_range(done_, range);
}

void PartFile::clear() {
  const MutexLock lock(mutex_);
  journal_->cut(0);
  done_.clear();
}

void PartFile::finish(const fs::path& target) {
  if (::fsync(file_.fd()) != 0) throw_io_error("cannot flush", path_, errno);
  if (::rename(path_.c_str(), target.c_str()) != 0) throw_io_error("cannot finish", target, errno);
  fsync_folder(target.parent_path());
  std::error_code ignored;  // left over, it says nothing of the next file of that name
  fs::remove(journal_path_, ignored);
}

uint64_t PartFile::bytes_there(const fs::path& folder, const std::string& name, uint64_t size) {
  if (!has_size(part_path(folder, name), size)) return 0;
  uint64_t bytes = 0;
  for (const ByteRange& range : recorded_ranges(ranges_path(folder, name), size)) bytes += range.size();
  return bytes;
}

void create_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require<IoError>(fs::is_directory(folder, error), "cannot create the folder ", folder.string(), ": ",
                   error ? error.message() : "a file of that name is there");
}

}  // namespace witan::fetch
