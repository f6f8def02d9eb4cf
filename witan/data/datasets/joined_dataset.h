// Several datasets as one: their documents, one dataset after another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/data/datasets/token_dataset.h"

namespace witan {

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
  // Whose document it is; `document` becomes its number there.
  const TokenDataset& part_of(int64_t& document) const;

  std::vector<std::shared_ptr<const TokenDataset>> parts_;
  std::vector<int64_t> begins_;  // [parts + 1]: the first document of each
  int64_t tokens_ = 0;
};

}  // namespace witan
