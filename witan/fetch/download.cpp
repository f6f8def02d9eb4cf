#include "witan/fetch/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/hash.h"
#include "witan/base/threads/mutex.h"

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

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kContentAttempts = 2;  // downloads of a file whose hash is wrong

// A file being downloaded. The downloader's mutex guards it, except for `part`, which is thread-safe.
struct ActiveFile {
  ActiveFile(const HubFile& of, const fs::path& parts) : file(of), part(parts, part_name(of), of.size) {}

  HubFile file;
  PartFile part;
  std::deque<ByteRange> pending;
  int in_flight = 0, wrong = 0;
  bool whole = false;  // the server ignores ranges: one connection downloads all of it
};

struct Segment {
  ActiveFile* of = nullptr;
  ByteRange range;
  uint64_t at = 0, recorded = 0;  // position, and how far the journal records it
  bool dropped = false;           // another connection downloads it
};

// Parses "bytes 0-99/1234" (RFC 9110, section 14.4); nullopt for other text.
struct ContentRange {
  ByteRange range;
  std::optional<uint64_t> total;
};
std::optional<ContentRange> content_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const char* const end = text.data() + text.size();
  const auto number = [&](const char* begin, uint64_t& value, char stop) -> const char* {
    const auto parsed = std::from_chars(begin, end, value);
    return parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == stop ? parsed.ptr + 1 : nullptr;
  };
  ContentRange out;
  uint64_t last = 0, total = 0;
  const char* at = number(text.data(), out.range.begin, '-');
  if (at != nullptr) at = number(at, last, '/');
  if (at == nullptr || last < out.range.begin || last + 1 == 0) return std::nullopt;
  out.range.end = last + 1;
  if (std::string_view(at, static_cast<size_t>(end - at)) == "*") return out;
  const auto parsed = std::from_chars(at, end, total);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  out.total = total;
  return out;
}

class Downloader {
 public:
  Downloader(const DownloadJob& job, const std::vector<HubFile>& files, const DownloadOptions& options,
             const DownloadHooks& hooks)
      : job_(job), files_(files), options_(options), hooks_(hooks) {}

  void run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.connections; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    const MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() {
    try {
      HttpClient client(http_options(job_.hub));
      std::mt19937 random(std::random_device{}());
      while (auto segment = next()) {
        if (segment->range.size() > 0) fetch(client, random, *segment);
        if (is_last(*segment)) complete(*segment->of);
      }
    } catch (...) {
      const MutexLock lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_ = true;
      changed_.notify_all();
    }
  }

  // A segment of a started file, or of the next file; nullopt once all are taken.
  std::optional<Segment> next() {
    const MutexLock lock(mutex_);
    if (stop_) return std::nullopt;
    auto found = std::ranges::find_if(begun_, [](const ActiveFile& file) { return !file.pending.empty(); });
    if (found == begun_.end()) {
      if (next_file_ == files_.size()) return std::nullopt;
      begun_.emplace_back(files_[next_file_++], job_.parts);
      found = std::prev(begun_.end());
      queue_missing(*found);
    }
    ++found->in_flight;
    ByteRange range;  // stays empty if the file is complete and only its hash is unverified
    if (!found->pending.empty()) {
      range = found->pending.front();
      found->pending.pop_front();
    }
    return Segment{&*found, range, range.begin, range.begin, false};
  }

  void queue_missing(ActiveFile& file) WITAN_REQUIRES(mutex_) {
    for (ByteRange missing : file.part.missing())
      for (; missing.size() > 0; missing.begin = file.pending.back().end)
        file.pending.push_back({missing.begin, std::min(missing.end, missing.begin + options_.segment_bytes)});
  }

  bool is_last(const Segment& segment) {
    const MutexLock lock(mutex_);
    return --segment.of->in_flight == 0 && segment.of->pending.empty() && !stop_;
  }

  bool stopped() {
    const MutexLock lock(mutex_);
    return stop_;
  }

  // Whether another connection downloads the whole file.
  bool is_superseded(const Segment& segment) {
    const MutexLock lock(mutex_);
    return segment.of->whole && segment.range.size() < segment.of->file.size;
  }

  // Sends requests until the segment is complete.
  void fetch(HttpClient& client, std::mt19937& random, Segment& segment) {
    const ActiveFile& of = *segment.of;
    const std::string url = file_url(job_.hub, job_.repository, job_.commit, of.file.path);
    uint64_t best = segment.at;
    for (int failures = 0;;) {
      if (!wait_until(pause_end()) || is_superseded(segment)) return;
      const HttpResult result = ask(client, url, segment);
      segment.of->part.record({segment.recorded, segment.at});
      segment.recorded = segment.at;
      if (segment.dropped || stopped() || segment.at == segment.range.end) return;
      failures = segment.at > best ? 1 : failures + 1;
      best = std::max(best, segment.at);
      retry_or_throw(result, segment, failures, random);
    }
  }

  HttpResult ask(HttpClient& client, const std::string& url, Segment& segment) {
    const ActiveFile& of = *segment.of;
    const bool all = segment.range.size() == of.file.size;  // without a range, and from the beginning if it was cut off
    const bool whole = all && (segment.at == 0 || is_whole(of));
    if (whole) segment.at = segment.recorded = 0;
    std::optional<ByteRange> range;
    if (!whole) range = ByteRange{segment.at, segment.range.end};
    return client.get(url, range,
                      {[&](const HttpResult& head) { return begin(head, segment, range); },
                       [&](std::string_view bytes) { return write(bytes, segment); }});
  }

  bool is_whole(const ActiveFile& file) {
    const MutexLock lock(mutex_);
    return file.whole;
  }

  bool begin(const HttpResult& head, Segment& segment, const std::optional<ByteRange>& asked) {
    const HubFile& file = segment.of->file;
    require_linked(head, file);
    if (head.status == 206) {
      const auto range = content_range(head.header("content-range"));
      require<DataError>(range && asked && range->range.begin == asked->begin, file.path, ": ", head.url,
                         " sent a different range than requested: \"", head.header("content-range"), "\"");
      require_size(head, file, range->total.value_or(file.size));
      return true;
    }
    uint64_t length = file.size;
    const std::string text = head.header("content-length");
    std::from_chars(text.data(), text.data() + text.size(), length);
    require_size(head, file, length);
    return !asked || take_whole(segment);
  }

  static void require_size(const HttpResult& head, const HubFile& file, uint64_t size) {
    require<DataError>(size == file.size, file.path, ": the hub lists ", file.size, " bytes, but ", head.url, " has ",
                       size, ": a mirror or proxy serves a different file; check HF_ENDPOINT and https_proxy");
  }

  // Compares the size and hash in the redirect to a large file with the hub's list. Not every mirror sends them.
  void require_linked(const HttpResult& head, const HubFile& file) const {
    uint64_t size = file.size;
    const std::string text = head.header("x-linked-size");
    std::from_chars(text.data(), text.data() + text.size(), size);
    std::string hash = head.header("x-linked-etag");
    if (hash.starts_with("W/")) hash.erase(0, 2);
    std::erase(hash, '"');
    const bool same_hash = !is_digest(file.digest.kind, hash) || hash == file.digest.hex;
    require<DataError>(size == file.size && same_hash, file.path, ": the hub lists ", file.size,
                       " bytes with the hash ", file.digest.hex, ", but redirects to ", size, " bytes with the hash ",
                       hash, ": the file changed meanwhile, or a mirror mixes revisions; run the same command again");
  }

  // The server ignores ranges: the first connection to notice downloads the whole file, the others drop it.
  bool take_whole(Segment& segment) {
    const MutexLock lock(mutex_);
    ActiveFile& of = *segment.of;
    if (of.whole && segment.range.size() < of.file.size) {
      segment.dropped = true;
      return false;
    }
    of.whole = true;
    of.pending.clear();
    segment.range = {0, of.file.size};
    segment.at = segment.recorded = 0;
    return true;
  }

  bool write(std::string_view bytes, Segment& segment) {
    ActiveFile& of = *segment.of;
    require<DataError>(
        bytes.size() <= segment.range.end - segment.at, of.file.path, ": the server sent more than the ",
        segment.range.size(),
        " bytes requested: a mirror or proxy serves a different file; check HF_ENDPOINT and https_proxy");
    if (stopped()) return false;
    of.part.write(segment.at, bytes);
    segment.at += bytes.size();
    if (segment.at - segment.recorded >= options_.record_bytes) {
      of.part.record({segment.recorded, segment.at});
      segment.recorded = segment.at;
    }
    if (hooks_.received) hooks_.received(bytes.size());
    return true;
  }

  // After a request that did not complete the segment: waits for a retry, or throws if a retry cannot help.
  void retry_or_throw(HttpResult result, const Segment& segment, int failures, std::mt19937& random) {
    const HubFile& file = segment.of->file;
    require<DataError>(result.status != 416, file.path, ": the hub lists ", file.size, " bytes, but ", result.url,
                       " has fewer: a mirror or proxy serves a different file; check HF_ENDPOINT and https_proxy");
    if (result.failure.empty() && (result.status == 200 || result.status == 206))
      result.failure = cat("the answer ended ", segment.range.end - segment.at, " bytes too early");
    const RetryOptions& retry = job_.hub.retry;
    require<DataError>(is_transient(result, origin_of(job_.hub.endpoint)) && failures <= retry.retries, file.path,
                       " of ", describe_failure(job_.hub, job_.repository, result));
    const double seconds = wait_seconds(retry, failures, result, random);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (hooks_.note) hooks_.note(retry_note(result, seconds, failures, retry));
    if (result.status == 429) pause(end);
    wait_until(end);
  }

  // The hub limits requests of all connections together, so a 429 pauses all of them.
  void pause(Clock::time_point end) {
    const MutexLock lock(mutex_);
    paused_until_ = std::max(paused_until_, end);
  }
  Clock::time_point pause_end() {
    const MutexLock lock(mutex_);
    return paused_until_;
  }

  // Returns false if an error ended the download.
  bool wait_until(Clock::time_point end) {
    MutexLock lock(mutex_);
    while (!stop_ && Clock::now() < end) changed_.wait_until(lock, end);
    return !stop_;
  }

  // Verifies the complete file against the hash that the hub lists, and gives it its final name.
  void complete(ActiveFile& of) {
    const HubFile& file = of.file;
    const Digest digest = digest_of_file(of.part.path(), file.digest.kind);
    if (digest == file.digest) {
      const fs::path target = job_.folder / file.path;
      create_folders(target.parent_path());
      of.part.finish(target);
      if (hooks_.finished) hooks_.finished(file);
      const MutexLock lock(mutex_);
      begun_.remove_if([&](const ActiveFile& other) { return &other == &of; });
      return;
    }
    of.part.clear();
    require<DataError>(++of.wrong < kContentAttempts, file.path, ": the downloaded file has the hash ", digest.hex,
                       ", but the hub lists ", file.digest.hex, ", ", kContentAttempts,
                       " times: a mirror or proxy alters the file; check HF_ENDPOINT and https_proxy");
    if (hooks_.note)
      hooks_.note(
          cat(file.path, ": the downloaded file has a different hash than the hub lists; downloading it again"));
    const MutexLock lock(mutex_);
    of.whole = false;
    queue_missing(of);
  }

  const DownloadJob& job_;
  const std::vector<HubFile>& files_;
  const DownloadOptions& options_;
  const DownloadHooks& hooks_;

  Mutex mutex_;
  CondVar changed_;
  std::list<ActiveFile> begun_ WITAN_GUARDED_BY(mutex_);
  size_t next_file_ WITAN_GUARDED_BY(mutex_) = 0;
  Clock::time_point paused_until_ WITAN_GUARDED_BY(mutex_);
  bool stop_ WITAN_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WITAN_GUARDED_BY(mutex_);
};

}  // namespace

std::string part_name(const HubFile& file) {
  return file.digest.hex + "-" + hash_hex(file.path.data(), file.path.size()).substr(0, 16);
}

void download(const DownloadJob& job, const std::vector<HubFile>& files, const DownloadOptions& options,
              const DownloadHooks& hooks) {
  Downloader(job, files, options, hooks).run();
}

}  // namespace witan::fetch
