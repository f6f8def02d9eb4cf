// Where training samples come from: the interface between datasets and batches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/data/token_dataset.h"

namespace witan {

// What the samples of a run have taken from one dataset so far.
struct SourceUse {
  std::string name;
  int64_t samples = 0;
  double epochs = 0;  // how often its tokens were read

  bool operator==(const SourceUse&) const = default;
};

// A sequence of samples, each of sequence_length + 1 tokens or of whole conversations. Thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t sequence_length() const = 0;
  // Samples in one pass over the data.
  virtual int64_t per_epoch() const = 0;
  // How many samples there are; none: any number, epoch after epoch.
  virtual std::optional<int64_t> size() const { return {}; }
  // The documents that samples are cut from.
  virtual const TokenDataset& dataset() const = 0;
  // What the first `samples` samples take from each dataset.
  virtual std::vector<SourceUse> use_of(int64_t samples) const = 0;

  // Of documents that are not conversations. Fills out [sequence_length + 1] with sample `index` >= 0. Throws DataError
  // beyond size().
  virtual void read(int64_t index, std::span<int32_t> out) const = 0;

  // Asks the system to bring all that sample `index` is made of into memory, and does not wait. Throws as read().
  virtual void prefetch(int64_t index) const = 0;

  // Of a dataset of conversations: how they fill the samples.
  struct PackedSize {
    int64_t conversations = 0;  // in samples
    int64_t cut = 0;            // of those, longer than a sample
    int64_t left_out = 0;       // without a token to learn from, in their first S + 1
    int64_t places = 0;         // of samples that hold tokens; the others are padding
  };
  virtual bool packed() const { return false; }
  virtual PackedSize packed_size() const { return {}; }
  // The conversations of a sample, documents of dataset().
  virtual std::vector<int64_t> conversations_of(int64_t) const { return {}; }
};

}  // namespace witan
