// Text as batches in which every token is a target exactly once.
#pragma once

#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/corpus/corpus.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

struct TextBatches {
  std::vector<Batch> batches;  // of one sequence each here; the last may be shorter
  double bytes = 0;            // of text that the targets encode
  CorpusStatistics corpus = {};
};

// All documents concatenated, each followed by an end-of-text token, if the tokenizer has one, which is also put before
// the first; split into sequences of `sequence_length` targets, with `batching` options at ends of text. Throws what
// read_corpus() throws, and DataError for text of fewer than two tokens.
TextBatches batch_text(const std::vector<Source>& sources, const CorpusOptions& options, const Tokenizer& tokenizer,
                       int64_t sequence_length, const BatchOptions& batching);

}  // namespace witan::cli
