// Megatron-LM's indexed dataset: PREFIX.bin with the tokens and PREFIX.idx with the positions of the documents in it.
// docs/formats/indexed_dataset.md describes the bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "witan/data/datasets/token_dataset.h"

namespace witan {

// Codes of the format, which never change. Floating-point types (6, 7) hold no tokens.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

// Bytes of one token.
int64_t token_width(TokenType type);
// u16 if every id fits by Megatron-LM's rule (fewer than 65,500), else i32.
TokenType token_type_for(int64_t vocab_size);

// The files of columns (docs/formats/indexed_dataset.md): PREFIX.columns, and PREFIX.columns/NAME.f32 in it.
fs::path columns_folder(const fs::path& prefix);
fs::path column_file(const fs::path& prefix, const std::string& name);

// All files mapped read-only; nothing is copied. Everything in the .idx is checked when it is opened (one pass).
class IndexedDataset final : public TokenDataset {
 public:
  // Throws IoError or CorruptionError (file, offset, what was expected).
  explicit IndexedDataset(const fs::path& prefix);

  int64_t documents() const override { return documents_; }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t document) const override { return begin(document + 1) - begin(document); }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override;
  std::string name() const override { return bin_.path().string(); }
  // Sorted by name. Each file has a float32 for each token of the .bin.
  std::vector<ColumnSpec> columns() const override;
  void read_column(const ColumnSpec& column, int64_t document, int64_t begin, std::span<float> out) const override;

  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  // The length of one of the sequences that documents consist of. 0 <= sequence < sequences().
  int64_t sequence_length(int64_t sequence) const;
  // Reads tokens of a sequence, as read() does of a document.
  void read_sequence(int64_t sequence, int64_t begin, std::span<int32_t> out) const;
  // Prefetches tokens of a sequence, as prefetch() does of a document.
  void prefetch_sequence(int64_t sequence, int64_t begin, int64_t tokens) const;

 private:
  void read_at(int64_t first, std::span<int32_t> out) const;
  // Bytes of the .bin; `first` counts tokens from its start.
  std::span<const std::byte> bytes_at(int64_t first, int64_t tokens) const;
  int64_t begin(int64_t document) const;  // in tokens from the start of the .bin; begin(documents()) = tokens()
  void check_header();
  void check_sequences();
  void check_documents() const;
  void map_columns(const fs::path& prefix);

  MappedFile idx_, bin_;
  std::map<std::string, MappedFile> columns_;  // by name
  TokenType type_{};
  int64_t width_ = 0, sequences_ = 0, documents_ = 0, tokens_ = 0;
  const std::byte *lengths_ = nullptr, *pointers_ = nullptr, *document_indices_ = nullptr;  // unaligned
};

// Writes a pair of files, one sequence per document. Tokens stream to disk; memory grows by 4 bytes per document.
class IndexedWriter {
 public:
  // Creates the folder if it is missing. Throws IoError.
  IndexedWriter(fs::path prefix, int64_t vocab_size);

  // Throws DataError for an id outside [0, vocab_size) or a document of 2^31 tokens or more.
  void add(std::span<const int32_t> document);
  // Publishes the files, the .idx last: a pair that has an .idx is complete. Call once.
  void finish();

  int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  fs::path prefix_;
  int64_t vocab_size_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<int32_t> lengths_;
  std::vector<uint16_t> narrow_;
  int64_t tokens_ = 0;
};

}  // namespace witan
