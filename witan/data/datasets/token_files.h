// Token files without an index: .npy files of OLMo (integers without a header) and of NumPy, and those of llm.c and
// modded-nanogpt. docs/formats/indexed_dataset.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "witan/data/datasets/token_dataset.h"

namespace witan {

// Tokens in a .npy file, u16 or u32, mapped read-only. A file without NumPy's header does not specify which: it has 32
// bits if the upper halves of the first 65,536 numbers are so small that they cannot be tokens.
class NpyTokens final : public TokenDataset {
 public:
  // Documents end with `end_of_text` (one pass over the file, 8 bytes of memory per document); without it, the file is
  // one document. Throws IoError, CorruptionError (file, offset, what was expected), and DataError for arrays that hold
  // no tokens.
  NpyTokens(const fs::path& path, std::optional<int32_t> end_of_text);

  int64_t documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t tokens() const override { return begins_.back(); }
  int64_t length(int64_t document) const override;
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override;
  std::string name() const override { return file_.path().string(); }

 private:
  void read_header();
  void guess_width();
  void find_documents(int32_t end_of_text, int64_t count);
  int64_t token(int64_t index) const;

  MappedFile file_;
  int64_t header_ = 0, width_ = 0;  // bytes
  std::vector<int64_t> begins_;     // [documents + 1], in tokens
};

// A token file of llm.c or modded-nanogpt: 256 int32 of header, then the tokens, in both versions: 20240520 (u16) and
// 20240801 (u32). Mapped read-only.
class TokenBin final : public TokenDataset {
 public:
  // These files mark documents by a token at their *start*: with `end_of_text`, a document starts at each such token
  // (one pass over the file, 8 bytes of memory per document); without it, the file is one document. Throws IoError or
  // CorruptionError (file, offset, what was expected).
  TokenBin(const fs::path& path, std::optional<int32_t> end_of_text);

  int64_t documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t tokens() const override { return begins_.back(); }
  int64_t length(int64_t document) const override;
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override;
  std::string name() const override { return file_.path().string(); }

 private:
  void check_header();
  void find_documents(int32_t end_of_text);
  int64_t token(int64_t index) const;

  MappedFile file_;
  int64_t width_ = 0;
  std::vector<int64_t> begins_;  // [documents + 1], in tokens
};

}  // namespace witan
