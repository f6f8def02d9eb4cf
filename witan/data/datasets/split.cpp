#include "witan/data/datasets/split.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/base/text.h"
#include "witan/data/datasets/conversation_dataset.h"

namespace witan {
namespace {

// The documents of a part, a range of the random order. Only the tokens [cut_begin, cut_end) of the document `cut` (an
// index into that order, or -1) belong to the part.
struct Range {
  int64_t first, last;
  int64_t cut, cut_begin, cut_end;
  int64_t tokens;
  int64_t together = 1;  // documents that the order keeps adjacent
};

class Part final : public TokenDataset {
 public:
  Part(std::shared_ptr<const TokenDataset> whole, const Permutation& order, Range range, std::string label)
      : whole_(std::move(whole)), order_(order), range_(range), label_(std::move(label)) {}

  int64_t documents() const override { return (range_.last - range_.first) * range_.together; }
  int64_t tokens() const override { return range_.tokens; }
  int64_t length(int64_t document) const override {
    if (is_split(document)) return range_.cut_end - range_.cut_begin;
    return whole_->length(in_whole(document));
  }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    assert(document >= 0 && document < documents());
    whole_->read(in_whole(document), begin_in_whole(document, begin), out);
  }
  std::string name() const override { return whole_->name() + " (" + label_ + ")"; }
  bool conversations() const override { return whole_->conversations(); }
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override {
    whole_->prefetch(in_whole(document), begin_in_whole(document, begin), tokens);
  }
  void read_loss(int64_t document, int64_t begin, std::span<float> out) const override {
    whole_->read_loss(in_whole(document), begin_in_whole(document, begin), out);
  }
  std::vector<ColumnSpec> columns() const override { return whole_->columns(); }
  void read_column(const ColumnSpec& column, int64_t document, int64_t begin, std::span<float> out) const override {
    whole_->read_column(column, in_whole(document), begin_in_whole(document, begin), out);
  }

 private:
  bool is_split(int64_t document) const { return range_.first + document == range_.cut; }
  int64_t in_whole(int64_t document) const {
    return order_(range_.first + document / range_.together) * range_.together + document % range_.together;
  }
  int64_t begin_in_whole(int64_t document, int64_t begin) const {
    return begin + (is_split(document) ? range_.cut_begin : 0);
  }

  std::shared_ptr<const TokenDataset> whole_;
  Permutation order_;
  Range range_;
  std::string label_;
};

// Conversations, and pairs of them, are held out whole: until there are enough tokens, but one is left to train on.
Split split_conversations(const std::shared_ptr<const TokenDataset>& dataset, const SplitOptions& options) {
  const int64_t together = holds_pairs(*dataset) ? 2 : 1, all = dataset->documents() / together;
  require<DataError>(all >= 2, dataset->name(), " has ", counted(all, together > 1 ? "pair" : "conversation"),
                     together > 1 ? " of answers" : "",
                     "; the training and the validation split need one each: give more");
  const Permutation order(all, options.seed, Philox::stream_of("held-out split"));
  const double wanted = options.held_out_fraction * static_cast<double>(dataset->tokens());
  int64_t taken = 0, count = 0;
  while (count < all - 1 && (count == 0 || static_cast<double>(taken) < wanted)) {
    for (int64_t i = 0; i < together; ++i) taken += dataset->length(order(count) * together + i);
    ++count;
  }
  const int64_t left = dataset->tokens() - taken;
  return {std::make_shared<Part>(dataset, order, Range{count, all, -1, 0, 0, left, together}, "training"),
          std::make_shared<Part>(dataset, order, Range{0, count, -1, 0, 0, taken, together}, "validation")};
}

}  // namespace

Split split_documents(std::shared_ptr<const TokenDataset> dataset, const SplitOptions& options) {
  require<ConfigError>(options.held_out_fraction > 0 && options.held_out_fraction < 1 && options.least_tokens >= 1,
                       "held_out_fraction must be between 0 and 1 and least_tokens at least 1");
  if (dataset->conversations()) return split_conversations(dataset, options);
  const int64_t total = dataset->tokens(), least = options.least_tokens;
  require<DataError>(total >= 2 * least, dataset->name(), " has ", total, " tokens in ",
                     counted(dataset->documents(), "document"),
                     "; the training and the validation split need at least ", least,
                     " each: give more text, or choose a smaller seq_length");
  const int64_t wanted =
      std::clamp(static_cast<int64_t>(options.held_out_fraction * static_cast<double>(total)), least, total - least);

  const Permutation order(dataset->documents(), options.seed, Philox::stream_of("held-out split"));
  int64_t taken = 0, count = 0;  // whole documents held out, and their tokens
  while (taken + dataset->length(order(count)) < wanted) taken += dataset->length(order(count++));
  const int64_t last = dataset->length(order(count));  // reaches what is wanted
  if (const int64_t all = taken + last; all <= 2 * wanted && total - all >= least) {
    const int64_t end = count + 1;
    return {std::make_shared<Part>(dataset, order, Range{end, dataset->documents(), -1, 0, 0, total - all}, "training"),
            std::make_shared<Part>(dataset, order, Range{0, end, -1, 0, 0, all}, "validation")};
  }
  const int64_t cut = last - (wanted - taken);  // tokens before it are trained on
  return {std::make_shared<Part>(dataset, order, Range{count, dataset->documents(), count, 0, cut, total - wanted},
                                 "training"),
          std::make_shared<Part>(dataset, order, Range{0, count + 1, count, cut, last, wanted}, "validation")};
}

}  // namespace witan
