#include "witan/data/datasets/token_dataset.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/datasets/token_files.h"

namespace witan {

void TokenDataset::read_loss(int64_t, int64_t, std::span<float> out) const {
  std::ranges::fill(out, 1.0f);
}

std::shared_ptr<const TokenDataset> open_tokens(const fs::path& path, std::optional<int32_t> end_of_text) {
  if (path.extension() == ".npy") return std::make_shared<NpyTokens>(path, end_of_text);
  fs::path prefix = path;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  const std::string stem = prefix.string(), bin = stem + ".bin";
  require<DataError>(fs::exists(bin), "there is no token file ", bin, "; make one with `witan data`");
  if (fs::exists(stem + kLossSuffix + ".idx")) return open_conversation_shards(prefix);
  if (fs::exists(stem + ".idx")) return std::make_shared<IndexedDataset>(prefix);
  return std::make_shared<TokenBin>(bin, end_of_text);
}

std::vector<std::shared_ptr<const TokenDataset>> open_all_tokens(const std::vector<fs::path>& paths,
                                                                 std::optional<int32_t> end_of_text) {
  std::vector<std::shared_ptr<const TokenDataset>> opened(paths.size());
  side_by_side(paths.size(), [&](size_t i) { opened[i] = open_tokens(paths[i], end_of_text); });
  return opened;
}

bool names_tokens(const fs::path& path) {
  std::error_code none;
  const auto is_file = [&](const fs::path& file) { return fs::is_regular_file(file, none); };
  const std::string kind = path.extension().string();
  if (is_file(path)) return kind == ".bin" || kind == ".idx" || kind == ".npy";
  return !fs::exists(path, none) && (is_file(path.string() + ".idx") || is_file(path.string() + ".bin"));
}

void expect_random_reads(std::span<const std::byte> mapped) {
  if (!mapped.empty()) ::madvise(const_cast<std::byte*>(mapped.data()), mapped.size(), MADV_RANDOM);
}

void read_ahead(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(mapped.data()), first = address / page * page;
  ::madvise(reinterpret_cast<void*>(first), address - first + mapped.size(), MADV_WILLNEED);
}

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
