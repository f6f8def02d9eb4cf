#include "witan/data/dedup/key_sorter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr uint64_t kLeastMemory = 64 << 10;
constexpr size_t kSmallItems = 256 << 10;  // items; below that doubling is cheap
constexpr size_t kLeastRunItems = 128;     // that a run reads at once, when there are very many

constexpr size_t kSpillBufferBytes = 256 << 10;

}  // namespace

// A sorted stretch of the temporary file, read through a block of memory.
struct KeySorter::Run {
  uint64_t offset = 0;
  int64_t left = 0;  // items of the file that are not in the block
  std::vector<KeyedDocument> block;
  size_t at = 0;

  const KeyedDocument& item() const { return block[at]; }

  // False at the end.
  bool advance(SpillFile& file) {
    if (++at < block.size()) return true;
    if (left == 0) return false;
    fill(file, block.capacity());
    return true;
  }

  void fill(SpillFile& file, size_t most) {
    block.reserve(most);
    block.resize(std::min(most, static_cast<size_t>(left)));
    const size_t bytes = block.size() * sizeof(KeyedDocument);
    file.read(offset, block.data(), bytes);
    offset += bytes;
    left -= static_cast<int64_t>(block.size());
    at = 0;
  }
};

KeySorter::KeySorter(fs::path folder, uint64_t memory)
    : folder_(std::move(folder)), most_(std::max(memory, kLeastMemory) / sizeof(KeyedDocument)) {}
KeySorter::~KeySorter() = default;

void KeySorter::add(const KeyedDocument& item) {
  assert(!reading_);
  // The last step grows to all of the memory, since untouched memory costs nothing: doubling would hold up to twice as
  // much.
  if (items_.size() == items_.capacity() && items_.size() >= kSmallItems) items_.reserve(most_);
  items_.push_back(item);
  ++size_;
  if (items_.size() == most_) spill();
}

void KeySorter::spill() {
  std::sort(items_.begin(), items_.end());
  if (!spill_) spill_ = std::make_unique<SpillFile>(folder_);
  spilled_runs_.emplace_back(spill_->size(), static_cast<int64_t>(items_.size()));
  constexpr size_t kItems = 4096;  // at once, so that the file's buffer stays small
  for (size_t i = 0; i < items_.size(); i += kItems)
    spill_->append(items_.data() + i, std::min(kItems, items_.size() - i) * sizeof(KeyedDocument));
  items_.clear();
}

void KeySorter::begin() {
  reading_ = true;
  if (!spill_) return std::sort(items_.begin(), items_.end());
  if (!items_.empty()) spill();
  items_ = {};
  const size_t each = std::max(most_ / spilled_runs_.size(), kLeastRunItems);
  for (const auto& [offset, count] : spilled_runs_) {
    heap_.push_back(std::make_unique<Run>(Run{offset, count, {}, 0}));
    heap_.back()->fill(*spill_, each);
  }
  std::make_heap(heap_.begin(), heap_.end(), [](const auto& a, const auto& b) { return b->item() < a->item(); });
}

bool KeySorter::next(KeyedDocument& item) {
  if (!reading_) begin();
  if (!spill_) {
    if (at_ == items_.size()) return false;
    item = items_[at_++];
    return true;
  }
  if (heap_.empty()) return false;
  const auto later = [](const auto& a, const auto& b) { return b->item() < a->item(); };
  std::pop_heap(heap_.begin(), heap_.end(), later);
  item = heap_.back()->item();
  if (heap_.back()->advance(*spill_))
    std::push_heap(heap_.begin(), heap_.end(), later);
  else
    heap_.pop_back();
  return true;
}

SpillFile::SpillFile(fs::path folder) : folder_(std::move(folder)) {
  std::string name = folder_ / ".witan-spill-XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) fail("cannot create a temporary file in");
  ::unlink(name.c_str());
}

SpillFile::~SpillFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SpillFile::fail(const char* what) const {
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    throw DiskFullError(cat(what, " ", folder_.string(), ": the disk is full after ", written_,
                            " bytes; free some space, or name a folder on another disk with --temporary"));
  throw IoError(cat(what, " ", folder_.string(), ": ", std::strerror(error),
                    "; name a folder that can be written with --temporary"));
}

void SpillFile::append(const void* data, size_t bytes) {
  buffer_.append(static_cast<const char*>(data), bytes);
  if (buffer_.size() >= kSpillBufferBytes) flush();
}

void SpillFile::flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::pwrite(fd_, buffer_.data() + done, buffer_.size() - done, static_cast<off_t>(written_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write a temporary file in");
    done += static_cast<size_t>(n);
  }
  written_ += buffer_.size();
  buffer_.clear();
}

void SpillFile::read(uint64_t offset, void* out, size_t bytes) {
  flush();
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read a temporary file in");
    require<IoError>(n > 0, "a temporary file in ", folder_.string(), " ends at byte ", offset + done,
                     ", before what was written to it");
    done += static_cast<size_t>(n);
  }
}

}  // namespace witan
