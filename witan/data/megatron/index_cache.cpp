#include "witan/data/megatron/index_cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/numbers/little_endian.h"

namespace witan::megatron {
namespace {

constexpr std::string_view kIndexMagic = "WITANIDX";
constexpr uint64_t kIndexVersion = 1;
constexpr size_t kAlign = 64;
constexpr size_t kHashAt = 24, kKeyBytesAt = 32, kHeaderBytes = 40;

size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// The table between the header and the arrays: the key, and the size of each array in bytes.
std::string table_of(const std::string& key, const IndexFile::Arrays& arrays) {
  std::string table = key;
  table.resize(aligned(table.size()), '\0');
  for (const auto& array : arrays) {
    const uint64_t bytes = array.size();
    table.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  }
  table.resize(aligned(table.size()), '\0');
  return table;
}

void write_index(const fs::path& path, const std::string& key, const IndexFile::Arrays& arrays) {
  static constexpr std::array<char, kAlign> kZeros{};
  const std::string table = table_of(key, arrays);
  const auto visit = [&](const auto& take) {
    take(table.data(), table.size());
    for (const auto& array : arrays) {
      take(array.data(), array.size());
      take(kZeros.data(), aligned(array.size()) - array.size());
    }
  };
  Hasher hasher;
  visit([&](const void* data, size_t bytes) { hasher.update(data, bytes); });
  std::array<char, kAlign> header{};
  std::memcpy(header.data(), kIndexMagic.data(), kIndexMagic.size());
  const std::array<uint64_t, 4> numbers = {kIndexVersion, arrays.size(), hasher.low64(), key.size()};
  std::memcpy(header.data() + kIndexMagic.size(), numbers.data(), sizeof numbers);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  visit([&](const void* data, size_t bytes) { file.write(data, bytes); });
  file.commit();
}

}  // namespace

IndexFile::IndexFile(const fs::path& folder, const std::string& name, const std::string& key,
                     const std::function<Arrays()>& build)
    : path_(folder / (name + "-" + hash_hex(key.data(), key.size()) + ".index")) {
  if (open(key)) return;
  const Arrays arrays = build();
  std::error_code error;
  fs::create_directories(folder, error);
  try {
    require<IoError>(!error, "cannot create the folder ", folder.string(), ": ", error.message());
    write_index(path_, key, arrays);
  } catch (const IoError& failed) {
    throw IoError(cat(failed.what(),
                      ": the indices of the data are kept there; give a folder that can be written with ",
                      "--data-cache-path"));
  }
  require<CorruptionError>(open(key), path_.string(),
                           ": the cache is corrupt right after it was written; delete it, and check the disk");
}

bool IndexFile::open(const std::string& key) {
  if (!fs::is_regular_file(path_)) return false;
  MappedFile file(path_);
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kAlign || !file.text().starts_with(kIndexMagic)) return false;
  const auto number = [&](size_t at) { return load<uint64_t>(bytes.data() + at); };
  const uint64_t count = number(16), key_bytes = number(kKeyBytesAt);
  const auto rest = bytes.subspan(kHeaderBytes, kAlign - kHeaderBytes);
  if (std::ranges::any_of(rest, [](std::byte one) { return one != std::byte{}; })) return false;
  if (number(8) != kIndexVersion || key_bytes != key.size() || count > bytes.size() / 8) return false;
  Hasher hasher;
  hasher.update(bytes.data() + kAlign, bytes.size() - kAlign);
  if (hasher.low64() != number(kHashAt)) return false;
  const size_t sizes_at = kAlign + aligned(key.size());
  size_t at = sizes_at + aligned(count * 8);
  if (at > bytes.size() || file.text().substr(kAlign, key.size()) != key) return false;
  std::vector<std::span<const std::byte>> arrays;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t size = number(sizes_at + i * 8);
    if (size > bytes.size() - at) return false;
    arrays.push_back(bytes.subspan(at, size));
    at += std::min<size_t>(aligned(size), bytes.size() - at);
  }
  file_ = std::move(file);
  arrays_ = std::move(arrays);
  return true;
}

}  // namespace witan::megatron
