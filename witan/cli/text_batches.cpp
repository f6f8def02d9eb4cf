#include "witan/cli/text_batches.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/data/prepare/text_encoder.h"
#include "witan/train/data/run_data.h"

namespace witan::cli {
namespace {

// Targets ids[begin + 1 .. begin + length].
Batch batch_of(const std::vector<int32_t>& ids, size_t begin, size_t length, const BatchOptions& options) {
  Batch batch;
  batch.sequences = 1;
  batch.sequence_length = static_cast<int64_t>(length);
  int32_t position = 0, document = 0;
  for (size_t i = begin; i < begin + length; ++i) {
    const bool ends = ids[i] == options.end_of_text;
    batch.tokens.push_back(ids[i]);
    batch.targets.push_back(ids[i + 1]);
    batch.positions.push_back(position);
    batch.sequence_ids.push_back(document);
    batch.loss_mask.push_back(ends && options.eod_mask_loss ? 0 : 1);
    batch.loss_tokens += batch.loss_mask.back() > 0;
    position = ends && options.reset_position_ids ? 0 : position + 1;
    document += ends && options.reset_attention_mask;
  }
  return batch;
}

}  // namespace

TextBatches batch_text(const std::vector<Source>& sources, const CorpusOptions& options, const Tokenizer& tokenizer,
                       int64_t sequence_length, const BatchOptions& batching) {
  const auto end_of_text = tokenizer.end_of_text();
  std::vector<int32_t> ids;
  const TextEncoder encoder = text_encoder(std::make_shared<const Tokenizer>(tokenizer));
  if (end_of_text && tokenizer.spec().before.empty()) ids.push_back(*end_of_text);
  const CorpusStatistics corpus = read_corpus(sources, options, [&](const Document& document) {
    encoder.encode(document.text, ids);
    if (end_of_text) ids.push_back(*end_of_text);
  });
  require<DataError>(ids.size() >= 2, "the text is too short to evaluate: it has fewer than two tokens");
  TextBatches text{{}, 0, corpus};
  for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(sequence_length))
    text.batches.push_back(
        batch_of(ids, begin, std::min(static_cast<size_t>(sequence_length), ids.size() - 1 - begin), batching));
  text.bytes = target_bytes(text.batches, tokenizer);
  return text;
}

}  // namespace witan::cli
