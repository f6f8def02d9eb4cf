// Megatron-Core's GPTDataset and BlendedDataset as sources of samples.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/megatron/gpt_index.h"
#include "witan/data/samples/sample_source.h"

namespace witan::megatron {

// One dataset, of which a split sees some sequences.
struct GptSamplesOptions {
  int64_t begin = 0, end = 0;     // of the sequences
  std::optional<int64_t> wanted;  // samples; none: one epoch
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  fs::path cache;               // folder of index files
  std::string split = "split";  // for errors: "validation split"
};

class GptSamples final : public SampleSource {
 public:
  // Throws DataError if there are too few tokens for one sample; IoError.
  GptSamples(std::shared_ptr<const IndexedDataset> dataset, const GptSamplesOptions& options);

  int64_t sequence_length() const override { return sequence_length_; }
  int64_t per_epoch() const override { return (epochs_.tokens - 1) / sequence_length_; }
  std::optional<int64_t> size() const override { return epochs_.samples; }
  const TokenDataset& dataset() const override { return *documents_; }
  std::vector<SourceUse> use_of(int64_t samples) const override;
  void read(int64_t index, std::span<int32_t> out) const override;
  void prefetch(int64_t index) const override;

  const Epochs& epochs() const { return epochs_; }
  std::shared_ptr<const TokenDataset> documents() const { return documents_; }
  // The indices, as Megatron-Core's: GptIndex.
  std::span<const int32_t> document_index() const { return index_->array<int32_t>(0); }
  std::span<const int64_t> places() const { return index_->array<int64_t>(1); }
  std::span<const int32_t> offsets() const { return index_->array<int32_t>(2); }
  std::span<const uint32_t> shuffle_index() const { return index_->array<uint32_t>(3); }

 private:
  // Calls visit(sequence, begin, tokens) for each part of a sequence that the sample consists of, in order.
  template <class Visit>
  void for_pieces(int64_t index, const Visit& visit) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  std::shared_ptr<const TokenDataset> documents_;  // the sequences of the split
  int64_t sequence_length_;
  Epochs epochs_;
  std::optional<IndexFile> index_;
};

// Samples of several datasets by their weights, or by their sizes.
class BlendedSamples final : public SampleSource {
 public:
  // `weights` need not be normalised. Throws DataError if a dataset is to give more samples than it has.
  BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts, const std::vector<double>& weights, int64_t size,
                 const fs::path& cache);
  // Every sample of every dataset once.
  BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts, const fs::path& cache);

  int64_t sequence_length() const override { return parts_.front()->sequence_length(); }
  int64_t per_epoch() const override { return per_epoch_; }
  std::optional<int64_t> size() const override { return static_cast<int64_t>(dataset_index().size()); }
  const TokenDataset& dataset() const override { return *documents_; }
  std::vector<SourceUse> use_of(int64_t samples) const override;
  void read(int64_t index, std::span<int32_t> out) const override;
  void prefetch(int64_t index) const override;

  const std::vector<std::shared_ptr<const GptSamples>>& parts() const { return parts_; }
  std::span<const int16_t> dataset_index() const { return index_->array<int16_t>(0); }
  std::span<const int64_t> dataset_sample_index() const { return index_->array<int64_t>(1); }

 private:
  explicit BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts);
  void make_index(const fs::path& cache, const std::string& key, const std::function<BlendIndex()>& build);

  std::vector<std::shared_ptr<const GptSamples>> parts_;
  std::shared_ptr<const TokenDataset> documents_;
  int64_t per_epoch_ = 0;
  std::optional<IndexFile> index_;
};

}  // namespace witan::megatron
