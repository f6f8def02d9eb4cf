// Documents of tokens from any format: the interface between files and samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/datasets/column.h"

namespace witan {

// Immutable after construction, so safe to share between threads.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;

  virtual int64_t documents() const = 0;
  virtual int64_t tokens() const = 0;
  // Tokens of one document, which may be none. 0 <= document < documents().
  virtual int64_t length(int64_t document) const = 0;
  // Fills `out` with tokens [begin, begin + out.size()) of the document, which must lie within it. Tokens are >= 0.
  // Throws CorruptionError for an id that does not fit.
  virtual void read(int64_t document, int64_t begin, std::span<int32_t> out) const = 0;
  // Asks the system to bring these tokens (and weights of read_loss) into memory, and does not wait: of files on a slow
  // or remote disk, many are then waited for at once. What is in memory already needs none.
  virtual void prefetch(int64_t /*document*/, int64_t /*begin*/, int64_t /*tokens*/) const {}
  // Whether documents are conversations: they are packed whole, and only some of their tokens are learnt from.
  virtual bool conversations() const { return false; }
  // Reads the weights of tokens in the loss: 0 for tokens that are not learnt from. Outside conversations all are 1.
  virtual void read_loss(int64_t document, int64_t begin, std::span<float> out) const;
  // The columns that documents have beside their tokens, each with a value per token.
  virtual std::vector<ColumnSpec> columns() const { return {}; }
  // Fills `out` with values of one of them for tokens [begin, begin + out.size()).
  virtual void read_column(const ColumnSpec& /*column*/, int64_t /*document*/, int64_t /*begin*/,
                           std::span<float> /*out*/) const {}
  // The dataset's name, for messages.
  virtual std::string name() const = 0;
};

// Opens PREFIX, PREFIX.bin or PREFIX.idx (with an .idx next to the .bin: Megatron-LM's format; otherwise llm.c's, split
// into documents at `end_of_text` if given; with a PREFIX.loss.idx: conversations), or OLMo's tokens in FILE.npy.
// Throws DataError if there is no such file, CorruptionError if its bytes do not follow the format.
std::shared_ptr<const TokenDataset> open_tokens(const fs::path& path, std::optional<int32_t> end_of_text = {});

// Opens each path, in this order. Opens many at once, since each takes a while on a remote file system.
std::vector<std::shared_ptr<const TokenDataset>> open_all_tokens(const std::vector<fs::path>& paths,
                                                                 std::optional<int32_t> end_of_text = {});

// Whether the path is one that open_tokens() takes, by its name and by what lies there: tokens, not text.
bool names_tokens(const fs::path& path);

// Samples lie anywhere in a file: the system is to read what they need, and no more. Its own guess, of up to megabytes
// for each, would take a thousand times as long where files are larger than memory.
void expect_random_reads(std::span<const std::byte> mapped);

// Asks for these bytes of a mapping, all at once, and does not wait for them where the file system can read in the
// background, as those of disks, NFS and FUSE do. What is asked for is read, once; asking again costs a system call.
void read_ahead(std::span<const std::byte> mapped);

// Joins several datasets to one that has all their documents, one dataset after another.
class JoinedDataset final : public TokenDataset {
 public:
  explicit JoinedDataset(std::vector<std::shared_ptr<const TokenDataset>> parts);

  int64_t documents() const override { return begins_.back(); }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t document) const override;
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override;
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override;
  bool conversations() const override { return !parts_.empty() && parts_.front()->conversations(); }
  void read_loss(int64_t document, int64_t begin, std::span<float> out) const override;
  std::vector<ColumnSpec> columns() const override;  // those that all parts have
  void read_column(const ColumnSpec& column, int64_t document, int64_t begin, std::span<float> out) const override;
  std::string name() const override;

  // The number here of a part's first document.
  int64_t first_of(size_t part) const { return begins_[part]; }

 private:
  // The part that a document belongs to; `document` becomes its number there.
  const TokenDataset& part_of(int64_t& document) const;

  std::vector<std::shared_ptr<const TokenDataset>> parts_;
  std::vector<int64_t> begins_;  // [parts + 1]: the first document of each
  int64_t tokens_ = 0;
};

}  // namespace witan
