// Text as batches in which every token is a target exactly once.
#pragma once

#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/corpus/corpus.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {

struct TextBatches {
  std::vector<Batch> batches;  // one sequence each; the last may be shorter
  double bytes = 0;            // length of the text that the targets encode
  CorpusStatistics corpus = {};
};

// Concatenates all documents, with an end-of-text token (if the tokenizer has one) before the first and after each, and
// splits them into sequences of `sequence_length` targets; `batching` says how ends of text are treated. Throws as
// read_corpus() does, and DataError for text of fewer than two tokens.
TextBatches batch_text(const std::vector<Source>& sources, const CorpusOptions& options, const Tokenizer& tokenizer,
                       int64_t sequence_length, const BatchOptions& batching);

}  // namespace witan::cli
