#include "witan/data/datasets/joined_dataset.h"

#include <algorithm>
#include <utility>

#include "witan/base/text.h"

namespace witan {

JoinedDataset::JoinedDataset(std::vector<std::shared_ptr<const TokenDataset>> parts)
    : parts_(std::move(parts)), begins_{0} {
  for (const auto& part : parts_) {
    begins_.push_back(begins_.back() + part->documents());
    tokens_ += part->tokens();
  }
}

const TokenDataset& JoinedDataset::part_of(int64_t& document) const {
  const auto part = std::upper_bound(begins_.begin(), begins_.end(), document) - begins_.begin() - 1;
  document -= begins_[static_cast<size_t>(part)];
  return *parts_[static_cast<size_t>(part)];
}

int64_t JoinedDataset::length(int64_t document) const {
  const TokenDataset& part = part_of(document);
  return part.length(document);
}

void JoinedDataset::read(int64_t document, int64_t begin, std::span<int32_t> out) const {
  const TokenDataset& part = part_of(document);
  part.read(document, begin, out);
}

void JoinedDataset::prefetch(int64_t document, int64_t begin, int64_t tokens) const {
  const TokenDataset& part = part_of(document);
  part.prefetch(document, begin, tokens);
}

void JoinedDataset::read_loss(int64_t document, int64_t begin, std::span<float> out) const {
  const TokenDataset& part = part_of(document);
  part.read_loss(document, begin, out);
}

std::vector<ColumnSpec> JoinedDataset::columns() const {
  std::vector<ColumnSpec> all = parts_.empty() ? std::vector<ColumnSpec>() : parts_.front()->columns();
  for (const auto& part : parts_)
    std::erase_if(all, [known = part->columns()](const ColumnSpec& column) {
      return std::ranges::find(known, column) == known.end();
    });
  return all;
}

void JoinedDataset::read_column(const ColumnSpec& column, int64_t document, int64_t begin, std::span<float> out) const {
  const TokenDataset& part = part_of(document);
  part.read_column(column, document, begin, out);
}

std::string JoinedDataset::name() const {
  if (parts_.empty()) return "no dataset";
  const auto others = static_cast<int64_t>(parts_.size()) - 1;
  return parts_.front()->name() + (others > 0 ? " and " + counted(others, "other") : "");
}

}  // namespace witan
