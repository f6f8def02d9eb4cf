// Samples of text that is packed best-fit, so that documents are cut only where they are longer than a sample (Ding et
// al., "Fewer Truncations Improve Language Modeling", ICML 2024, arXiv:2404.10830).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/mutex.h"
#include "witan/data/samples/packing.h"
#include "witan/data/samples/sample_source.h"

namespace witan {

struct PackedSamplesOptions {
  int64_t sequence_length = 1024;  // S
  uint64_t seed = 1234;
  bool shuffle = true;                // samples, anew in every epoch; false: every epoch as the first
  int64_t window = int64_t{1} << 20;  // documents that are packed together
  int threads = 1;                    // that count the samples of windows; what they count does not depend on it
};

// A document of n tokens has n - 1 pairs of a token and its target. From its beginning on they are cut into pieces of
// S, each a sample of its own, and an end of fewer, and ends are packed best-fit decreasing into samples of S places.
// So an epoch has every token of every document but its first as a target once, and a document is cut only if it has
// more than S pairs. Documents of fewer than two tokens are left out.
//
// Documents are packed by windows, each of so many documents drawn at random by the seed, so that memory does not grow
// with the text: an epoch reads window after window, in an order of its own, and the samples of each in random order.
// They are packed once; what changes from epoch to epoch are the orders.
//
// Immutable but for a cache of the last windows used; thread-safe. Opening reads the length of every document. Memory:
// up to 24 bytes for each document of a window, of two windows, and while one is packed as much again twice.
class PackedSamples final : public SampleSource {
 public:
  // Throws DataError if no document has two tokens, ConfigError for a sequence length below 1.
  PackedSamples(std::shared_ptr<const TokenDataset> dataset, PackedSamplesOptions options);
  ~PackedSamples() override;

  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t per_epoch() const override { return per_epoch_; }
  const TokenDataset& dataset() const override { return *dataset_; }
  std::vector<SourceUse> use_of(int64_t samples) const override;
  void read(int64_t index, std::span<int32_t> out) const override;

  bool packed() const override { return true; }
  PackedSize packed_size() const override { return size_; }
  // A pure function of (dataset, options, index); O(log documents) unless it is the first of a window.
  std::vector<Piece> pieces_of(int64_t index) const override;

 private:
  struct Window;
  struct Epoch;
  std::shared_ptr<const Window> pack(int64_t number) const;
  std::shared_ptr<const Window> window(int64_t number) const;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;

  std::shared_ptr<const TokenDataset> dataset_;
  PackedSamplesOptions options_;
  Permutation order_;                // of documents, which windows are cut from
  std::vector<int64_t> samples_of_;  // of each window
  int64_t per_epoch_ = 0;
  PackedSize size_;
  mutable Mutex mutex_;
  // Two of each: a prefetcher crosses the boundary first.
  mutable std::array<std::shared_ptr<const Window>, 2> windows_ WITAN_GUARDED_BY(mutex_);
  mutable std::array<std::shared_ptr<const Epoch>, 2> epochs_ WITAN_GUARDED_BY(mutex_);
};

}  // namespace witan
