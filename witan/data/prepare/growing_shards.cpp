#include "witan/data/prepare/growing_shards.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

fs::path partial_bin(const fs::path& prefix) {
  return prefix.string() + ".partial.bin";
}

fs::path partial_lengths(const fs::path& prefix) {
  return prefix.string() + ".partial.lengths";
}

// Undoes the last step of a process that was killed before the step after it.
const fs::path& ready(const fs::path& prefix, bool resume) {
  create_folders(prefix.parent_path());
  std::error_code error;
  if (!resume)
    GrowingShards::discard(prefix);
  else if (!fs::exists(partial_bin(prefix)) && fs::exists(partial_lengths(prefix)))
    fs::rename(prefix.string() + ".bin", partial_bin(prefix), error);
  return prefix;
}

// Calls `visit` with the lengths in the file, many at a time.
void read_lengths(const fs::path& path, const std::function<void(std::span<const int32_t>)>& visit) {
  std::ifstream file(path, std::ios::binary);
  std::vector<int32_t> lengths(1 << 18);
  do {
    file.read(reinterpret_cast<char*>(lengths.data()), static_cast<std::streamsize>(lengths.size() * sizeof(int32_t)));
    visit(std::span<const int32_t>(lengths).first(static_cast<size_t>(file.gcount()) / sizeof(int32_t)));
  } while (file);
  require<IoError>(file.eof(), "cannot read ", path.string());
}

}  // namespace

GrowingShards::GrowingShards(const fs::path& prefix, int64_t vocab_size, bool resume)
    : prefix_(ready(prefix, resume)),
      vocab_size_(vocab_size),
      type_(token_type_for(vocab_size)),
      bin_(partial_bin(prefix)),
      lengths_(partial_lengths(prefix)) {}

void GrowingShards::add(std::span<const int32_t> document) {
  require<DataError>(document.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "document ",
                     documents(), " has ", document.size(), " tokens; the format allows fewer than 2^31");
  for (const int32_t token : document)
    require<DataError>(token >= 0 && token < vocab_size_, "document ", documents(), ": token id ", token,
                       " is outside the vocabulary of ", vocab_size_);
  const void* data = document.data();
  if (type_ == TokenType::u16) {
    narrow_.assign(document.begin(), document.end());
    data = narrow_.data();
  }
  bin_.append({static_cast<const char*>(data), document.size() * static_cast<size_t>(token_width(type_))});
  const auto length = static_cast<int32_t>(document.size());
  lengths_.append({reinterpret_cast<const char*>(&length), sizeof length});
}

void GrowingShards::cut(int64_t documents, int64_t tokens) {
  bin_.cut(static_cast<uint64_t>(tokens * token_width(type_)));
  lengths_.cut(static_cast<uint64_t>(documents) * sizeof(int32_t));
}

void GrowingShards::sync() {
  bin_.sync();
  lengths_.sync();
}

void GrowingShards::write_index(AtomicFile& idx) const {
  const auto put = [&](const auto& value) { idx.write(&value, sizeof value); };
  uint64_t sequences = 0;
  read_lengths(lengths_.path(), [&](std::span<const int32_t> lengths) {
    sequences += static_cast<uint64_t>(lengths.size()) - static_cast<uint64_t>(std::ranges::count(lengths, 0));
  });
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  put(uint64_t{1});
  put(type_);
  put(sequences);
  put(static_cast<uint64_t>(documents()) + 1);
  read_lengths(lengths_.path(), [&](std::span<const int32_t> lengths) {
    for (const int32_t length : lengths)
      if (length > 0) put(length);
  });
  int64_t pointer = 0, boundary = 0;
  read_lengths(lengths_.path(), [&](std::span<const int32_t> lengths) {
    for (const int32_t length : lengths) {
      if (length > 0) put(pointer);
      pointer += length * token_width(type_);
    }
  });
  put(boundary);
  read_lengths(lengths_.path(), [&](std::span<const int32_t> lengths) {
    for (const int32_t length : lengths) put(boundary += length > 0);
  });
}

void GrowingShards::publish() {
  sync();
  const fs::path idx_path = prefix_.string() + ".idx";
  AtomicFile idx(idx_path);
  write_index(idx);
  fs::remove(idx_path);  // of an earlier pair: it must not remain with the new .bin
  fs::rename(bin_.path(), prefix_.string() + ".bin");
  fsync_folder(prefix_.parent_path());
  idx.commit();
}

bool GrowingShards::hold(const fs::path& prefix, int64_t vocab_size, int64_t documents, int64_t tokens) {
  const auto has = [](const fs::path& path, int64_t bytes) {
    std::error_code absent;
    const uint64_t size = fs::file_size(path, absent);
    return !absent && size >= static_cast<uint64_t>(bytes);
  };
  const auto bytes = tokens * token_width(token_type_for(vocab_size));
  return has(partial_lengths(prefix), documents * static_cast<int64_t>(sizeof(int32_t))) &&
         has(fs::exists(partial_bin(prefix)) ? partial_bin(prefix) : fs::path(prefix.string() + ".bin"), bytes);
}

void GrowingShards::discard(const fs::path& prefix) {
  std::error_code absent;
  fs::remove(partial_lengths(prefix), absent);
  fs::remove(partial_bin(prefix), absent);
}

}  // namespace witan
