#include "witan/data/datasets/conversation_dataset.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/numbers/half.h"
#include "witan/data/datasets/indexed_dataset.h"

namespace witan {
namespace {

bool is_mark(int32_t mark) {
  constexpr int32_t kLeastNormal = 0x0400;
  return mark <= 1 || (mark >= kLeastNormal && mark < kLossMarks);
}

class ConversationShards final : public TokenDataset {
 public:
  explicit ConversationShards(const fs::path& prefix) : tokens_(prefix), loss_(prefix.string() + kLossSuffix) {
    require<CorruptionError>(tokens_.documents() == loss_.documents() && tokens_.tokens() == loss_.tokens(),
                             loss_.name(), ": has ", loss_.tokens(), " marks of ", loss_.documents(),
                             " conversations, but ", tokens_.name(), " has ", tokens_.tokens(), " tokens of ",
                             tokens_.documents(), ": prepare them again");
    for (int64_t d = 0; d < tokens_.documents(); ++d)
      require<CorruptionError>(tokens_.length(d) == loss_.length(d), loss_.name(), ": conversation ", d, " has ",
                               loss_.length(d), " marks, but ", tokens_.length(d), " tokens: prepare them again");
  }

  int64_t documents() const override { return tokens_.documents(); }
  int64_t tokens() const override { return tokens_.tokens(); }
  int64_t length(int64_t document) const override { return tokens_.length(document); }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    tokens_.read(document, begin, out);
  }
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override {
    tokens_.prefetch(document, begin, tokens);
    loss_.prefetch(document, begin, tokens);
  }
  std::string name() const override { return tokens_.name(); }
  bool conversations() const override { return true; }
  void read_loss(int64_t document, int64_t begin, std::span<float> out) const override {
    std::vector<int32_t> marks(out.size());
    loss_.read(document, begin, marks);
    require<CorruptionError>(std::ranges::all_of(marks, is_mark), loss_.name(), ": conversation ", document,
                             " has a mark that is the weight of no token");
    std::ranges::transform(marks, out.begin(), weight_of_mark);
  }
  std::vector<ColumnSpec> columns() const override { return tokens_.columns(); }
  void read_column(const ColumnSpec& column, int64_t document, int64_t begin, std::span<float> out) const override {
    tokens_.read_column(column, document, begin, out);
  }

 private:
  IndexedDataset tokens_, loss_;
};

}  // namespace

int32_t mark_of_weight(float weight) {
  return weight == 0 || weight == 1 ? static_cast<int32_t>(weight) : f16(weight).bits;
}

float weight_of_mark(int32_t mark) {
  if (mark <= 1) return static_cast<float>(mark);
  f16 weight;
  weight.bits = static_cast<uint16_t>(mark);
  return weight;
}

bool holds_pairs(const TokenDataset& dataset) {
  if (!dataset.conversations() || dataset.documents() == 0 || dataset.length(0) == 0) return false;
  float mark = 0;
  dataset.read_loss(0, 0, {&mark, 1});
  return mark == kChosenMark;
}

std::shared_ptr<const TokenDataset> open_conversation_shards(const fs::path& prefix) {
  return std::make_shared<ConversationShards>(prefix);
}

void TokensInMemory::add(std::vector<int32_t> tokens) {
  total_ += static_cast<int64_t>(tokens.size());
  tokens_.push_back(std::move(tokens));
}

void TokensInMemory::add(std::vector<int32_t> tokens, std::vector<float> loss) {
  loss_.push_back(std::move(loss));
  add(std::move(tokens));
}

void TokensInMemory::read(int64_t document, int64_t begin, std::span<int32_t> out) const {
  std::copy_n(tokens_[static_cast<size_t>(document)].begin() + begin, out.size(), out.begin());
}

void TokensInMemory::read_loss(int64_t document, int64_t begin, std::span<float> out) const {
  if (!conversations()) return TokenDataset::read_loss(document, begin, out);
  std::copy_n(loss_[static_cast<size_t>(document)].begin() + begin, out.size(), out.begin());
}

}  // namespace witan
