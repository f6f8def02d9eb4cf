// Samples of sequence_length + 1 tokens from a dataset, epoch after epoch, by the scheme of Megatron-LM's GPT dataset:
// a document order, a sample index over the concatenated documents, and a shuffle of the samples.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "witan/base/mutex.h"
#include "witan/data/packing.h"
#include "witan/data/permutation.h"
#include "witan/data/token_dataset.h"

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
//
// Immutable except for a cache of the last epochs used; thread-safe. Memory: 8 bytes per document and cached epoch.
class Samples {
 public:
  // Throws DataError when the dataset has too few tokens for one sample.
  Samples(std::shared_ptr<const TokenDataset> dataset, SamplesOptions options);
  ~Samples();

  int64_t sequence_length() const { return options_.sequence_length; }
  int64_t per_epoch() const { return per_epoch_; }
  const TokenDataset& dataset() const { return *dataset_; }

  // Of a dataset of conversations: how they fill the samples.
  struct PackedSize {
    int64_t conversations = 0;  // in samples
    int64_t cut = 0;            // of those, longer than a sample
    int64_t left_out = 0;       // without a token to learn from, in their first S + 1
    int64_t places = 0;         // of samples that hold tokens; the others are padding
  };
  bool packed() const { return packed_.has_value(); }
  const PackedSize& packed_size() const { return packed_size_; }
  // The conversations of a sample.
  std::vector<int64_t> conversations_of(int64_t index) const;

  // Of documents that are not conversations. Fills out [S + 1] with sample `index` >= 0 of the endless sequence of
  // epochs: a pure function of (dataset, options, index), O(log documents) after an epoch's first use.
  void read(int64_t index, std::span<int32_t> out) const;

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void pack();

  std::shared_ptr<const TokenDataset> dataset_;
  SamplesOptions options_;
  int64_t per_epoch_ = 0;
  std::optional<PackedDocuments> packed_;
  PackedSize packed_size_;
  mutable Mutex mutex_;
  // Two: a prefetcher crosses the boundary first.
  mutable std::array<std::shared_ptr<const Epoch>, 2> recent_ WITAN_GUARDED_BY(mutex_);
};

}  // namespace witan
