// Samples of several sources in Witan's own order: each source is shuffled by itself, epoch by epoch, and a Mixture
// says whose sample is next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/data/datasets/joined_dataset.h"
#include "witan/data/samples/mixture.h"
#include "witan/data/samples/sample_source.h"

namespace witan {

class MixedSamples final : public SampleSource {
 public:
  struct Source {
    std::string name;  // sources of one name are told of together
    std::shared_ptr<const SampleSource> samples;
  };
  // Sources of text or of conversations, all packed or none, of one sequence length. Throws as Mixture.
  MixedSamples(std::vector<Source> sources, std::vector<MixturePhase> phases, double max_epochs, uint64_t seed);

  int64_t sequence_length() const override { return sources_.front().samples->sequence_length(); }
  int64_t per_epoch() const override { return per_epoch_; }
  std::optional<int64_t> size() const override { return mixture_->size(); }
  const TokenDataset& dataset() const override { return *documents_; }
  std::vector<SourceUse> use_of(int64_t samples) const override;
  void read(int64_t index, std::span<int32_t> out) const override;
  void prefetch(int64_t index) const override;

  bool packed() const override { return sources_.front().samples->packed(); }
  PackedSize packed_size() const override;
  std::vector<Piece> pieces_of(int64_t index) const override;
  std::vector<ColumnSpec> columns() const override;  // those that all sources have
  void read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const override;

 private:
  std::vector<Source> sources_;
  std::shared_ptr<const JoinedDataset> documents_;
  int64_t per_epoch_ = 0;
  std::unique_ptr<const Mixture> mixture_;
};

}  // namespace witan
