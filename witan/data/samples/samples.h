// Samples of sequence_length + 1 tokens from a dataset, epoch after epoch, by the scheme of Megatron-LM's GPT dataset:
// a document order, a sample index over the concatenated documents, and a shuffle of the samples.
#pragma once

#include <array>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/mutex.h"
#include "witan/data/samples/packing.h"
#include "witan/data/samples/sample_source.h"

namespace witan {

struct SamplesOptions {
  int64_t sequence_length = 1024;
  uint64_t seed = 1234;
  bool shuffle = true;                // documents and samples; false: the dataset's order, the same in every epoch
  Packing packing = Packing::greedy;  // of conversations
};

// Every epoch is independent. Its documents, in an order of their own, form one stream of T tokens; sample k is tokens
// [kS, kS + S + 1) of it, so that each but the first token is a target exactly once; the fewer than S tokens left at
// the end are dropped (another tail in every epoch), and no sample spans two epochs. Megatron-LM instead concatenates
// all epochs of a run, which makes its samples depend on the length of the run.
//
// A dataset of conversations gives samples of whole conversations instead: each takes one place less than it has tokens
// (its first token is no target, its last no input), and the first S + 1 tokens of a longer one are used; what has no
// token to learn from is left out. They are packed once; what changes from epoch to epoch is the order of the samples.
// Pairs of answers (holds_pairs()) stay together, chosen and rejected one after the other in a sample; a pair that does
// not fit into one is left out.
//
// Immutable except for a cache of the last epochs used; thread-safe. Memory: 8 bytes per document and cached epoch.
class Samples final : public SampleSource {
 public:
  // Throws DataError when the dataset has too few tokens for one sample.
  Samples(std::shared_ptr<const TokenDataset> dataset, SamplesOptions options);
  ~Samples() override;

  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t per_epoch() const override { return per_epoch_; }
  const TokenDataset& dataset() const override { return *dataset_; }
  std::vector<SourceUse> use_of(int64_t samples) const override;

  bool packed() const override { return packed_.has_value(); }
  PackedSize packed_size() const override { return packed_size_; }
  std::vector<Piece> pieces_of(int64_t index) const override;

  // A pure function of (dataset, options, index), O(log documents) after an epoch's first use.
  void read(int64_t index, std::span<int32_t> out) const override;
  std::vector<ColumnSpec> columns() const override { return dataset_->columns(); }
  void read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const override;
  void prefetch(int64_t index) const override;

 private:
  struct Epoch;
  // Calls visit(document, begin, tokens) for each part of a document that the sample consists of, in order.
  template <class Visit>
  void for_pieces(int64_t index, const Visit& visit) const;
  struct RecentEpoch {
    int64_t number = -1;
    std::shared_future<std::shared_ptr<const Epoch>> epoch;  // done when somebody has made it
  };
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void pack();
  void pack_pairs();

  std::shared_ptr<const TokenDataset> dataset_;
  SamplesOptions options_;
  int64_t together_ = 1;  // documents that are packed as one
  int64_t per_epoch_ = 0;
  std::optional<PackedDocuments> packed_;
  PackedSize packed_size_;
  mutable Mutex mutex_;
  // Two: a prefetcher crosses the boundary first.
  mutable std::array<RecentEpoch, 2> recent_ WITAN_GUARDED_BY(mutex_);
};

}  // namespace witan
