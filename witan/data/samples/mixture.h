// Mixes samples of several sources so that each gives its share: the order of the mixture, and the samples in it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/data/samples/sample_source.h"

namespace witan {

// Weights from a sample on. They need not add up to 1; a source of weight 0 is not read.
struct MixturePhase {
  int64_t begin = 0;
  std::vector<double> weights;
};

struct MixtureOptions {
  std::vector<int64_t> per_epoch;    // samples of each source
  std::vector<MixturePhase> phases;  // in rising order, the first from sample 0
  double max_epochs = 0;             // no source gives more than so many of its epochs; 0: any number
  uint64_t seed = 1234;
};

// A pure function of its options, so the same whatever the layout and wherever a run resumes. Sample j of a source with
// weight w since the phase began has the time (j + u) / w, with u random in [0, 1) for each of them, and samples are
// taken in the order of their times (stratified sampling): of any run of N samples each source gives N times its share,
// but for two. A source that has given max_epochs epochs is not read any more; the others take its place.
//
// Thread-safe. Any sample costs O(log sources), but for the first of a block of 4,096: O(sources).
class Mixture {
 public:
  // Throws ConfigError for weights that are negative, not finite or all 0, and for phases that do not rise.
  explicit Mixture(MixtureOptions options);
  ~Mixture();

  struct Place {
    size_t source = 0;
    int64_t sample = 0;  // of the source, over its epochs
    bool operator==(const Place&) const = default;
  };
  // Throws DataError beyond size().
  Place at(int64_t index) const;
  // How many of the first `samples` samples each source gives.
  std::vector<int64_t> taken(int64_t samples) const;
  // None: any number.
  std::optional<int64_t> size() const { return size_; }

 private:
  struct Cursor;
  struct Block;
  struct Phase {
    int64_t begin = 0;
    std::vector<double> weights;  // normalised
    std::vector<int64_t> before;  // taken when it begins
  };

  size_t phase_of(int64_t index) const;
  double time_of(const Phase& phase, size_t source, int64_t sample) const;
  int64_t left(const Phase& phase, size_t source) const;  // of the source, from the phase's beginning on
  int64_t counts_at(const Phase& phase, double time, std::vector<int64_t>& counts) const;
  bool has_more(const Phase& phase, const std::vector<int64_t>& counts) const;
  Cursor seek(const Phase& phase, int64_t samples) const;
  std::shared_ptr<const Block> block(size_t phase, int64_t number) const;

  MixtureOptions options_;
  std::vector<Phase> phases_;
  std::optional<int64_t> size_;
  mutable Mutex mutex_;
  mutable std::array<std::shared_ptr<const Block>, 4> recent_ WITAN_GUARDED_BY(mutex_);
};

// Samples of several sources in Witan's own order: each source is shuffled by itself, epoch by epoch, and a Mixture
// chooses the source of the next sample.
class MixedSamples final : public SampleSource {
 public:
  struct Source {
    std::string name;  // sources of the same name are reported together
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
