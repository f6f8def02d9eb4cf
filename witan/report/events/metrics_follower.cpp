#include "witan/report/events/metrics_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;  // bytes that are read at a time
constexpr size_t kTailBytes = 512;               // enough for a step's line, whose timings no other step has

// Open for reading, or not if there is no such file.
Descriptor opened(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block, but fail
  require<IoError>(file.is_open() || errno == ENOENT, "cannot read ", path.string(), ": ", std::strerror(errno));
  struct stat status {};
  require<IoError>(!file.is_open() || (::fstat(file.fd(), &status) == 0 && S_ISREG(status.st_mode)), "cannot read ",
                   path.string(), ": it is not a regular file");
  return file;
}

// Reads at most `bytes` of the file from `offset`, fewer at its end.
std::string read_at(int fd, uint64_t offset, size_t bytes) {
  std::string text(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    const ssize_t now = ::pread(fd, text.data() + got, bytes - got, static_cast<off_t>(offset + got));
    if (now < 0 && errno == EINTR) continue;
    require<IoError>(now >= 0, "cannot read metrics.jsonl: ", std::strerror(errno));
    if (now == 0) break;
    got += static_cast<size_t>(now);
  }
  text.resize(got);
  return text;
}

}  // namespace

MetricsFollower::MetricsFollower(fs::path path) : MetricsFollower(std::move(path), Most()) {}

MetricsFollower::MetricsFollower(fs::path path, Most most, OnDamage on_damage)
    : path_(std::move(path)),
      most_(most),
      on_damage_(on_damage),
      steps_{.most = most.steps},
      experts_{.most = most.experts},
      layers_{.most = most.layers},
      activations_{.most = most.activations},
      gpus_{.most = most.gpus} {}

// Whether the file still begins with the bytes that were read. A file that was cut and has grown again has other bytes
// there.
bool MetricsFollower::goes_on(int fd, uint64_t size) const {
  return size >= offset_ && read_at(fd, offset_ - tail_.size(), tail_.size()) == tail_;
}

bool MetricsFollower::read_more() {
  const Descriptor file = opened(path_);
  struct stat status {};
  const bool exists = file.fd() >= 0 && ::fstat(file.fd(), &status) == 0 && S_ISREG(status.st_mode);
  require<IoError>(exists || offset_ == 0, path_.string(), " is gone: it was moved or removed");
  const std::pair identity{status.st_dev, status.st_ino};
  const uint64_t size = exists ? static_cast<uint64_t>(status.st_size) : 0;
  if (failed_ || (offset_ > 0 && (identity != file_ || !goes_on(file.fd(), size)))) {
    MetricsFollower again(path_, most_, on_damage_);
    again.read_more();
    *this = std::move(again);
    return true;
  }
  file_ = identity;
  const uint64_t before = offset_;
  try {
    read_from(file.fd(), size);
  } catch (...) {
    failed_ = true;
    throw;
  }
  return offset_ != before;
}

// Takes the lines from offset_ on.
void MetricsFollower::read_from(int fd, uint64_t size) {
  for (size_t piece = kPieceBytes; offset_ < size;) {
    const std::string text = read_at(fd, offset_, std::min<uint64_t>(piece, size - offset_));
    const size_t whole = text.rfind('\n') + 1;
    if (whole > 0) {
      take_lines(std::string_view(text).substr(0, whole), offset_);
      offset_ += whole;
      tail_ = text.substr(whole - std::min(whole, kTailBytes), std::min(whole, kTailBytes));
    } else if (text.size() < piece) {
      break;  // the last line is still being written
    } else {
      piece *= 2;  // a line is longer than that
    }
  }
  keep_last(steps_, metrics_.steps);
  keep_last(experts_, metrics_.experts);
  keep_last(layers_, metrics_.layers);
  keep_last(activations_, metrics_.activations);
  keep_last(gpus_, metrics_.gpus);
}

void MetricsFollower::take_lines(std::string_view text, uint64_t offset) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string_view line = text.substr(begin, end - begin);
    ++damaged_.of;
    take_line(line, offset + begin);
    begin = end + 1;
  }
}

void MetricsFollower::take_line(std::string_view line, uint64_t at) {
  switch (kind_of(line).value_or(std::variant_npos)) {
    case kIndexOf<StepEvent>:
      return take_thinned(steps_, metrics_.steps, line, at);
    case kIndexOf<ExpertsEvent>:
      return take_thinned(experts_, metrics_.experts, line, at);
    case kIndexOf<LayersEvent>:
      return take_thinned(layers_, metrics_.layers, line, at);
    case kIndexOf<ActivationsEvent>:
      return take_thinned(activations_, metrics_.activations, line, at);
    case kIndexOf<GpusEvent>:
      return take_thinned(gpus_, metrics_.gpus, line, at);
    default:
      add(line, at);
  }
}

template <class E>
void MetricsFollower::take_thinned(Thinning& thinning, std::vector<E>& events, std::string_view line, uint64_t at) {
  if (thinning.head < thinning.most / kHeadShare) {
    const size_t before = events.size();
    add(line, at);
    thinning.head += std::ssize(events) - static_cast<int64_t>(before);
    return;
  }
  if (std::exchange(thinning.last_is_extra, false)) events.pop_back();
  if (thinning.seen++ % thinning.stride != 0) {
    thinning.skipped = line;
    thinning.skipped_at = at;
    return;
  }
  thinning.skipped.clear();
  add(line, at);
  const auto spread = std::span(events).subspan(static_cast<size_t>(thinning.head));
  if (std::ssize(spread) <= 2 * thinning.most) return;
  // The first of each stretch of `stride` lines is kept: every second of them begins a stretch of twice the length, and
  // the one just added, the last of an odd number, does.
  for (size_t i = 1; 2 * i < spread.size(); ++i) spread[i] = std::move(spread[2 * i]);
  events.resize(events.size() - spread.size() / 2);
  thinning.stride *= 2;
}

template <class E>
void MetricsFollower::keep_last(Thinning& thinning, std::vector<E>& events) {
  if (thinning.skipped.empty()) return;
  const size_t before = events.size();
  add(thinning.skipped, thinning.skipped_at);
  thinning.last_is_extra = events.size() > before;
  thinning.skipped.clear();
}

void MetricsFollower::add(std::string_view line, uint64_t at) {
  const std::string where = cat(path_.string(), ": byte ", at);
  try {
    if (std::optional<Event> event = parse_event(line, where)) add_event(metrics_, std::move(*event), where);
  } catch (const CorruptionError& error) {
    if (on_damage_ == OnDamage::throws) throw;
    if (damaged_.count++ == 0) damaged_.first = error.what();
  }
}

}  // namespace witan
