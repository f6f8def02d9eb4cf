#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

constexpr size_t kPiece = 16 << 20;

std::string hash_of(std::span<const std::byte> mapped) {
  Hasher hasher;
  for (size_t begin = 0; begin < mapped.size(); begin += kPiece) {
    const auto piece = mapped.subspan(begin, std::min(kPiece, mapped.size() - begin));
    hasher.update(piece.data(), piece.size());
    release_pages(piece);
  }
  return hasher.hex();
}

MappedFile map(const fs::path& path) try { return MappedFile(path); } catch (const IoError& e) {
  throw CheckpointError(cat(e.what(), "; ", kWayOut));
}

}  // namespace

void release_pages(std::span<const std::byte> mapped) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(mapped.data()), last = first + mapped.size();
  const uintptr_t begin = (first + page - 1) / page * page, end = last / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile open_verified(const fs::path& folder, const Manifest::File& file) {
  MappedFile mapped = map(folder / file.name);
  const auto bytes = mapped.bytes();
  require<CheckpointError>(bytes.size() == file.digest.bytes, mapped.path().string(), " has ", bytes.size(),
                           " bytes, the manifest expects ", file.digest.bytes, "; ", kWayOut);
  const std::string hash = hash_of(bytes);
  require<CheckpointError>(hash == file.digest.hash, mapped.path().string(), " is damaged: its XXH3-128 is ", hash,
                           ", the manifest expects ", file.digest.hash, "; ", kWayOut);
  return mapped;
}

const SafetensorsFile& Shards::open(size_t shard) {
  const auto found = open_.find(shard);
  if (found != open_.end()) return found->second;
  return open_.emplace(shard, SafetensorsFile(open_verified(folder_, manifest_.shards[shard]))).first->second;
}

std::span<const std::byte> Shards::bytes_of(const std::string& name, const Manifest::Entry& entry,
                                            const Manifest::Part& part) {
  const SafetensorsFile& file = open(part.shard);
  const std::string key = part_name(name, entry.shape, part.region);
  const SafetensorsFile::Entry* found = file.find(key);
  const Shape shape = part_shape(entry.shape, part.region);
  require<CheckpointError>(found && found->info.dtype == entry.dtype && found->info.shape == shape,
                           (folder_ / manifest_.shards[part.shard].name).string(), ": the manifest expects \"",
                           clipped(key), "\", ", entry.dtype, " ", shape, " in it, but it has no such tensor");
  return found->bytes;
}

}  // namespace witan
