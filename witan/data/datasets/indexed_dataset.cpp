#include "witan/data/datasets/indexed_dataset.h"

#include <cassert>
#include <cstring>
#include <limits>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/numbers/little_endian.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kVersion = 1;
constexpr size_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kHeaderBytes = 34;

// Up to here the system reads a file, or a part of one, at a single page fault anyway.
constexpr size_t kReadAtOnce = 4096;
constexpr const char* kColumnExtension = ".f32";

// Copies tokens of type T into int32; the index of the first that does not fit, or -1.
template <class T>
int64_t convert(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const T value = load<T>(from + i * sizeof(T));
    if (value < 0 || static_cast<uint64_t>(value) > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
      return static_cast<int64_t>(i);
    out[i] = static_cast<int32_t>(value);
  }
  return -1;
}

int64_t convert(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::u8:
      return convert<uint8_t>(from, out);
    case TokenType::i8:
      return convert<int8_t>(from, out);
    case TokenType::i16:
      return convert<int16_t>(from, out);
    case TokenType::i32:
      return convert<int32_t>(from, out);
    case TokenType::i64:
      return convert<int64_t>(from, out);
    case TokenType::u16:
      return convert<uint16_t>(from, out);
  }
  return 0;
}

// Throws unless `condition`: "FILE: byte OFFSET: ...".
template <class... Pieces>
void check(bool condition, const MappedFile& file, uint64_t offset, Pieces&&... pieces) {
  require<CorruptionError>(condition, file.path().string(), ": byte ", offset, ": ", std::forward<Pieces>(pieces)...);
}

fs::path with_suffix(const fs::path& prefix, const char* suffix) {
  return prefix.string() + suffix;
}

const fs::path& in_existing_folder(const fs::path& prefix) {
  create_folders(prefix.parent_path());
  return prefix;
}

}  // namespace

int64_t token_width(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::i16:
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

fs::path columns_folder(const fs::path& prefix) {
  return with_suffix(prefix, ".columns");
}

fs::path column_file(const fs::path& prefix, const std::string& name) {
  return columns_folder(prefix) / (name + kColumnExtension);
}

IndexedDataset::IndexedDataset(const fs::path& prefix)
    : idx_(with_suffix(prefix, ".idx")), bin_(with_suffix(prefix, ".bin")) {
  expect_random_reads(bin_.bytes());
  if (idx_.bytes().size() > kReadAtOnce) read_ahead(idx_.bytes());
  check_header();
  check_sequences();
  check_documents();
  map_columns(prefix);
}

void IndexedDataset::map_columns(const fs::path& prefix) {
  const fs::path folder = columns_folder(prefix);
  if (!fs::is_directory(folder)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != kColumnExtension) continue;
    const MappedFile& file = columns_.emplace(entry.path().stem().string(), entry.path()).first->second;
    const auto values = static_cast<int64_t>(file.bytes().size() / sizeof(float));
    check(values == tokens_ && file.bytes().size() % sizeof(float) == 0, file, file.bytes().size(),
          "the file must have ", tokens_ * static_cast<int64_t>(sizeof(float)), " bytes, a float32 for each token of ",
          name());
    expect_random_reads(file.bytes());
  }
}

std::vector<ColumnSpec> IndexedDataset::columns() const {
  std::vector<ColumnSpec> all;
  for (const auto& [column, file] : columns_) all.push_back({column});
  return all;
}

void IndexedDataset::read_column(const ColumnSpec& column, int64_t document, int64_t begin,
                                 std::span<float> out) const {
  assert(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= length(document));
  const std::byte* from = columns_.at(column.name).bytes().data() + (this->begin(document) + begin) * sizeof(float);
  for (size_t i = 0; i < out.size(); ++i) out[i] = load<float>(from + i * sizeof(float));
}

void IndexedDataset::check_header() {
  const std::byte* base = idx_.bytes().data();
  const uint64_t size = idx_.bytes().size();
  check(idx_.text().starts_with(kMagic), idx_, 0, "not a Megatron index: it must start with \"MMIDIDX\\0\\0\"");
  check(size >= kHeaderBytes, idx_, size, "the file ends inside its header of ", kHeaderBytes, " bytes");
  const auto version = load<uint64_t>(base + kVersionAt);
  check(version == kVersion, idx_, kVersionAt, "version ", version, " is unknown; wanted ", kVersion);
  type_ = static_cast<TokenType>(load<uint8_t>(base + kTypeAt));
  width_ = token_width(type_);
  check(width_ > 0, idx_, kTypeAt, "type code ", static_cast<int>(type_),
        " is no integer type; wanted 1, 2, 3, 4, 5 or 8");

  const auto sequences = load<uint64_t>(base + kSequencesAt), ends = load<uint64_t>(base + kDocumentsAt);
  // Bounded by the file before anything is multiplied, so that nothing overflows.
  check(sequences <= size / 12 && ends <= size / 8 && ends >= 1, idx_, kSequencesAt, sequences, " sequences and ", ends,
        " document ends do not fit in a file of ", size, " bytes");
  const uint64_t wanted = kHeaderBytes + sequences * 12 + ends * 8;
  check(size == wanted || size == wanted + sequences, idx_, size, "the file must have ", wanted, " bytes (or ",
        wanted + sequences, " with modes); it is truncated or damaged");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(ends) - 1;
  lengths_ = base + kHeaderBytes;
  pointers_ = lengths_ + sequences * 4;
  document_indices_ = pointers_ + sequences * 8;
}

void IndexedDataset::check_sequences() {
  const auto offset_of = [&](const std::byte* at) { return static_cast<uint64_t>(at - idx_.bytes().data()); };
  const auto bin_bytes = static_cast<int64_t>(bin_.bytes().size());
  int64_t end = 0;  // bytes; never above bin_bytes, so the sums below cannot overflow
  for (int64_t i = 0; i < sequences_; ++i) {
    const auto length = load<int32_t>(lengths_ + i * 4);
    check(length >= 0, idx_, offset_of(lengths_ + i * 4), "sequence ", i, " has the length ", length);
    const auto pointer = load<int64_t>(pointers_ + i * 8);
    check(pointer == end, idx_, offset_of(pointers_ + i * 8), "sequence ", i, " starts at byte ", pointer,
          ", but the one before it ends at ", end);
    end += length * width_;
    check(end <= bin_bytes, idx_, offset_of(lengths_ + i * 4), "sequence ", i, " ends at byte ", end, " of ", name(),
          ", which has ", bin_bytes, "; is it truncated?");
  }
  check(end == bin_bytes, bin_, static_cast<uint64_t>(end), "the index ends here, but the file has ", bin_bytes,
        " bytes; do both files belong to the same pair?");
  tokens_ = end / width_;
}

void IndexedDataset::check_documents() const {
  int64_t previous = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    const std::byte* at = document_indices_ + d * 8;
    const auto index = load<int64_t>(at);
    const bool good = d == 0 ? index == 0 : index >= previous && index <= sequences_;
    check(good && (d < documents_ || index == sequences_), idx_, static_cast<uint64_t>(at - idx_.bytes().data()),
          "document boundary ", d, " is sequence ", index, " of ", sequences_,
          "; boundaries must rise from 0 to the number of sequences");
    previous = index;
  }
}

int64_t IndexedDataset::begin(int64_t document) const {
  const auto sequence = load<int64_t>(document_indices_ + document * 8);
  return sequence == sequences_ ? tokens_ : load<int64_t>(pointers_ + sequence * 8) / width_;
}

void IndexedDataset::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  assert(document >= 0 && document < documents_);
  assert(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= length(document));
  read_at(begin(document) + offset, out);
}

void IndexedDataset::prefetch(int64_t document, int64_t offset, int64_t tokens) const {
  assert(offset >= 0 && offset + tokens <= length(document));
  read_ahead(bytes_at(begin(document) + offset, tokens));
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  assert(sequence >= 0 && sequence < sequences_);
  return load<int32_t>(lengths_ + sequence * 4);
}

void IndexedDataset::read_sequence(int64_t sequence, int64_t offset, std::span<int32_t> out) const {
  assert(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= sequence_length(sequence));
  read_at(load<int64_t>(pointers_ + sequence * 8) / width_ + offset, out);
}

void IndexedDataset::prefetch_sequence(int64_t sequence, int64_t offset, int64_t tokens) const {
  assert(offset >= 0 && offset + tokens <= sequence_length(sequence));
  read_ahead(bytes_at(load<int64_t>(pointers_ + sequence * 8) / width_ + offset, tokens));
}

std::span<const std::byte> IndexedDataset::bytes_at(int64_t first, int64_t tokens) const {
  return bin_.bytes().subspan(static_cast<size_t>(first * width_), static_cast<size_t>(tokens * width_));
}

// `first`: in tokens from the start of the .bin.
void IndexedDataset::read_at(int64_t first, std::span<int32_t> out) const {
  const std::span<const std::byte> bytes = bytes_at(first, static_cast<int64_t>(out.size()));
  if (bytes.size() > kReadAtOnce) read_ahead(bytes);
  const int64_t bad = convert(type_, bytes.data(), out);
  check(bad < 0, bin_, static_cast<uint64_t>((first + bad) * width_), "a token id is negative or above 2^31 - 1");
}

IndexedWriter::IndexedWriter(fs::path prefix, int64_t vocab_size)
    : prefix_(std::move(prefix)),
      vocab_size_(vocab_size),
      type_(token_type_for(vocab_size)),
      bin_(with_suffix(in_existing_folder(prefix_), ".bin")) {}

void IndexedWriter::add(std::span<const int32_t> document) {
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
  bin_.write(data, document.size() * static_cast<size_t>(token_width(type_)));
  lengths_.push_back(static_cast<int32_t>(document.size()));
  tokens_ += static_cast<int64_t>(document.size());
}

void IndexedWriter::finish() {
  const fs::path idx_path = with_suffix(prefix_, ".idx");
  AtomicFile idx(idx_path);
  const auto put = [&](const auto& value) { idx.write(&value, sizeof value); };
  const auto sequences = static_cast<uint64_t>(lengths_.size());
  idx.write(kMagic);
  put(kVersion);
  put(type_);
  put(sequences);
  put(sequences + 1);
  idx.write(lengths_.data(), lengths_.size() * sizeof(int32_t));
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    put(pointer);
    pointer += length * token_width(type_);
  }
  for (int64_t d = 0; d <= static_cast<int64_t>(sequences); ++d) put(d);

  fs::remove(idx_path);  // of an earlier pair: it must not remain with the new .bin
  bin_.commit();
  idx.commit();
}

}  // namespace witan
