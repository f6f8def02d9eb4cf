#include "witan/train/train_tokenizer.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

uint64_t total_bytes(const std::vector<Source>& sources) {
  uint64_t bytes = 0;
  for (const Source& source : sources) bytes += source.bytes;
  return bytes;
}

Tokenizer train_tokenizer(const BpeTrainerConfig& config, const std::vector<Source>& sources,
                          const CorpusOptions& options, Progress& progress) {
  const double start = progress.now();
  BpeTrainer trainer(config);
  uint64_t used = 0;
  TaskProgress counting(progress, "reading text", static_cast<double>(std::max<uint64_t>(total_bytes(sources), 1)),
                        "B");
  read_corpus(sources, options, [&](const Document& document) {
    if (used < kTokenizerText) trainer.add(document.text);
    used += document.text.size();
    counting.update(static_cast<double>(document.source_bytes));
  });
  TaskProgress merging(progress, "training the tokenizer", static_cast<double>(config.vocab_size), "merges");
  Tokenizer tokenizer = trainer.train([&](int64_t done, int64_t) { merging.update(static_cast<double>(done)); });
  progress.note(cat("tokenizer    byte-level BPE of ", tokenizer.vocab_size(), " entries, trained on ",
                    format_bytes(static_cast<double>(std::min(used, kTokenizerText))), " of text in ",
                    format_duration(progress.now() - start)));
  return tokenizer;
}

}  // namespace witan
