#include "witan/data/rows/merge_indexed.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/base/numbers/little_endian.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/rows/work_folder.h"

namespace witan {
namespace {

constexpr size_t kIndexHeader = 34;    // docs/formats/indexed_dataset.md
constexpr size_t kIndexCountsAt = 18;  // sequences, then documents + 1, both u64
constexpr size_t kCopyBytes = 8 << 20;

fs::path suffixed(const fs::path& prefix, const char* suffix) {
  return prefix.string() + suffix;
}

const char* name_of_type(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "uint8";
    case TokenType::i8:
      return "int8";
    case TokenType::i16:
      return "int16";
    case TokenType::i32:
      return "int32";
    case TokenType::i64:
      return "int64";
    case TokenType::u16:
      return "uint16";
  }
  return "";
}

// One pair; checked when it is opened.
struct IndexedPart {
  explicit IndexedPart(const fs::path& of)
      : prefix(of), dataset(of), idx(suffixed(of, ".idx")), bin(suffixed(of, ".bin")) {
    const size_t plain = kIndexHeader + static_cast<size_t>(sequences()) * 12 + ends() * 8;
    has_modes = idx.bytes().size() > plain;
  }

  int64_t sequences() const { return dataset.sequences(); }
  size_t ends() const { return static_cast<size_t>(dataset.documents()) + 1; }
  std::span<const std::byte> lengths() const {
    return idx.bytes().subspan(kIndexHeader, static_cast<size_t>(sequences()) * 4);
  }
  int64_t document_end(size_t i) const {
    return load<int64_t>(idx.bytes().data() + kIndexHeader + static_cast<size_t>(sequences()) * 12 + i * 8);
  }
  std::span<const std::byte> modes() const { return idx.bytes().last(static_cast<size_t>(sequences())); }

  fs::path prefix;
  IndexedDataset dataset;
  MappedFile idx, bin;
  bool has_modes = false;
};

using IndexedParts = std::vector<IndexedPart>;

void check_alike(const IndexedParts& parts) {
  const IndexedPart& first = parts.front();
  for (const IndexedPart& part : parts) {
    require<DataError>(part.dataset.type() == first.dataset.type(), part.prefix.string(), ".idx has tokens of ",
                       name_of_type(part.dataset.type()), " and ", first.prefix.string(), ".idx of ",
                       name_of_type(first.dataset.type()),
                       ": one pair holds one type; tokenize both with the same tokenizer, or train on a blend of them");
    require<DataError>(part.has_modes == first.has_modes, part.has_modes ? part.prefix.string() : first.prefix.string(),
                       ".idx has modes of sequences (multimodal data) and ",
                       part.has_modes ? first.prefix.string() : part.prefix.string(),
                       ".idx has none: merge those that have them by themselves");
  }
}

// The tokenizer that `witan data` recorded in PREFIX.json; null: none, as beside files of other programs.
nlohmann::json tokenizer_of(const fs::path& prefix) try {
  const fs::path path = suffixed(prefix, ".json");
  if (!fs::exists(path)) return nullptr;
  return parse_json(read_file(path), path.string()).at("key").at("tokenizer");
} catch (const nlohmann::json::exception&) {
  return nullptr;
} catch (const CorruptionError&) {
  return nullptr;
}

void check_tokenizers(const std::vector<fs::path>& prefixes) {
  const fs::path* known = nullptr;
  nlohmann::json tokenizer;
  for (const fs::path& prefix : prefixes) {
    nlohmann::json own = tokenizer_of(prefix);
    if (own.is_null()) continue;
    require<DataError>(!known || own == tokenizer, prefix.string(), " and ", known ? known->string() : "",
                       " were made with different tokenizers (see their .json): ids would mean different tokens; "
                       "tokenize both with the same --tokenizer");
    known = &prefix;
    tokenizer = std::move(own);
  }
}

template <class T>
void put_number(AtomicFile& file, T value) {
  file.write(&value, sizeof value);
}

void write_lengths_and_pointers(AtomicFile& idx, const IndexedParts& parts) {
  for (const IndexedPart& part : parts) idx.write(part.lengths().data(), part.lengths().size());
  const int64_t width = token_width(parts.front().dataset.type());
  int64_t pointer = 0;
  for (const IndexedPart& part : parts)
    for (int64_t i = 0; i < part.sequences(); ++i) {
      put_number(idx, pointer);
      pointer += load<int32_t>(part.lengths().data() + i * 4) * width;
    }
}

void write_merged_index(AtomicFile& idx, const IndexedParts& parts, const MergedIndexed& merged) {
  idx.write(parts.front().idx.bytes().data(), kIndexCountsAt);  // magic, version, type
  put_number(idx, static_cast<uint64_t>(merged.sequences));
  put_number(idx, static_cast<uint64_t>(merged.documents + 1));
  write_lengths_and_pointers(idx, parts);
  put_number(idx, int64_t{0});
  int64_t before = 0;  // sequences
  for (const IndexedPart& part : parts) {
    for (size_t i = 1; i < part.ends(); ++i) put_number(idx, before + part.document_end(i));
    before += part.sequences();
  }
  for (const IndexedPart& part : parts)
    if (part.has_modes) idx.write(part.modes().data(), part.modes().size());
}

// Sums the progress over several pairs.
struct CopyProgress {
  const std::function<void(uint64_t, uint64_t)>& report;
  uint64_t done = 0, total = 0;
};

MergedIndexed merge_pairs(const std::vector<fs::path>& prefixes, const fs::path& output, CopyProgress& progress) {
  IndexedParts parts;
  parts.reserve(prefixes.size());
  for (const fs::path& prefix : prefixes) parts.emplace_back(prefix);
  check_alike(parts);
  MergedIndexed merged;
  for (const IndexedPart& part : parts) {
    merged.sequences += part.sequences();
    merged.documents += part.dataset.documents();
    merged.tokens += part.dataset.tokens();
    merged.bytes += part.bin.bytes().size();
  }
  AtomicFile idx(suffixed(output, ".idx")), bin(suffixed(output, ".bin"));
  write_merged_index(idx, parts, merged);
  for (const IndexedPart& part : parts)
    for (auto rest = part.bin.bytes(); !rest.empty(); rest = rest.subspan(std::min(rest.size(), kCopyBytes))) {
      const size_t bytes = std::min(rest.size(), kCopyBytes);
      bin.write(rest.data(), bytes);
      progress.done += bytes;
      if (progress.report) progress.report(progress.done, progress.total);
    }
  bin.commit();
  idx.commit();
  return merged;
}

std::vector<fs::path> loss_companions(const std::vector<fs::path>& prefixes) {
  std::vector<fs::path> found;
  for (const fs::path& prefix : prefixes)
    if (fs::exists(suffixed(prefix, kLossSuffix).string() + ".idx")) found.push_back(suffixed(prefix, kLossSuffix));
  require<DataError>(found.empty() || found.size() == prefixes.size(), "of ", prefixes.size(), " pairs ", found.size(),
                     " are conversations (they have a PREFIX", kLossSuffix,
                     ".idx) and the others are not: merge the two kinds apart");
  return found;
}

}  // namespace

MergedIndexed merge_indexed(const std::vector<fs::path>& prefixes, const fs::path& output,
                            const std::function<void(uint64_t done, uint64_t total)>& progress) {
  require<ConfigError>(!prefixes.empty(), "give pairs of .bin and .idx to merge");
  for (const char* suffix : {".bin", ".idx", ".columns"})
    require<ConfigError>(!fs::exists(suffixed(output, suffix)), suffixed(output, suffix).string(),
                         " exists already: remove it, or give another --output");
  check_tokenizers(prefixes);
  const std::vector<fs::path> losses = loss_companions(prefixes);
  CopyProgress copied{progress};
  for (const auto* list : {&prefixes, &losses})
    for (const fs::path& prefix : *list) copied.total += fs::file_size(suffixed(prefix, ".bin"));
  const fs::path folder = output.has_parent_path() ? output.parent_path() : fs::path(".");
  create_folders(folder);
  require<DiskFullError>(copied.total <= free_disk_bytes(folder), "the merged .bin takes ", copied.total,
                         " bytes, and ", folder.string(), " has room for ", free_disk_bytes(folder),
                         ": free some space, or give another --output");
  // The loss weights come first: without them the tokens would pass for plain text.
  if (!losses.empty()) merge_pairs(losses, suffixed(output, kLossSuffix), copied);
  return merge_pairs(prefixes, output, copied);
}

fs::path indexed_prefix(const fs::path& path) {
  fs::path prefix = path;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  return fs::exists(suffixed(prefix, ".bin")) && fs::exists(suffixed(prefix, ".idx")) ? prefix : fs::path();
}

std::vector<fs::path> indexed_prefixes_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path prefix = entry.path().extension() == ".idx" ? indexed_prefix(entry.path()) : fs::path();
    if (!prefix.empty() && prefix.extension() != kLossSuffix) found.push_back(prefix);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace witan
