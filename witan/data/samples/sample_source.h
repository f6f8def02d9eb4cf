// A source of training samples, the interface between datasets and batches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/data/datasets/column.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan {

// How much the samples of a run have taken from one dataset so far.
struct SourceUse {
  std::string name;
  int64_t samples = 0;
  double epochs = 0;  // how often its tokens were read

  bool operator==(const SourceUse&) const = default;
};

// A sequence of samples, each of sequence_length + 1 tokens or of pieces of documents. Thread-safe.
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
  // How much the first `samples` samples take from each dataset.
  virtual std::vector<SourceUse> use_of(int64_t samples) const = 0;

  // Fills out [sequence_length + 1] with sample `index` >= 0, unless samples are packed. Throws DataError beyond
  // size().
  virtual void read(int64_t index, std::span<int32_t> out) const = 0;

  // Whether samples hold pieces of documents that are kept apart from each other: conversations, or text that is
  // packed. Then read() is not for them, and pieces_of() is.
  virtual bool packed() const { return false; }
  // A piece of a document: of its tokens [begin, begin + places] each but the last is an input, in a place of the
  // sample, and the next one is its target.
  struct Piece {
    int64_t document = 0;  // of dataset()
    int64_t begin = 0, places = 0;

    bool operator==(const Piece&) const = default;
  };
  // The pieces of documents in a sample, from its first place on; the places after them are padding.
  virtual std::vector<Piece> pieces_of(int64_t) const { return {}; }

  // The columns that samples have beside their tokens: of packed ones those of their documents.
  virtual std::vector<ColumnSpec> columns() const { return packed() ? dataset().columns() : std::vector<ColumnSpec>(); }
  // Fills `out` with sample `index`'s values of one of them: [sequence_length] per token, 0 where there is padding, or
  // [1] per sample. Throws as read() and pieces_of() do. A source that is not packed and has columns overrides it.
  virtual void read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const {
    for (const Piece& piece : pieces_of(index)) {
      const auto places = static_cast<size_t>(piece.places);
      // A place of the input has the value of the next token, which is its target.
      dataset().read_column(column, piece.document, piece.begin + 1, out.first(places));
      out = out.subspan(places);
    }
    std::ranges::fill(out, 0.0f);
  }

  // Asks the system to bring all that sample `index` is made of into memory, and does not wait. Throws as read() and
  // pieces_of() do. A source that is not packed overrides it.
  virtual void prefetch(int64_t index) const {
    for (const Piece& piece : pieces_of(index)) dataset().prefetch(piece.document, piece.begin, piece.places + 1);
  }

  // How documents fill the samples of an epoch.
  struct PackedSize {
    int64_t documents = 0;       // in samples
    int64_t cut = 0;             // of those, longer than a sample: of text in several, of conversations shortened
    int64_t left_out = 0;        // without a token to learn from; of conversations, in their first S + 1
    int64_t places = 0;          // of samples that hold tokens; the others are padding
    int64_t cut_end_to_end = 0;  // of text: documents that would lie in several samples if all were laid end to end
  };
  virtual PackedSize packed_size() const { return {}; }
};

}  // namespace witan
