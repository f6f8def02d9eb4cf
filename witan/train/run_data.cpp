#include "witan/train/run_data.h"

#include <cmath>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads.h"
#include "witan/data/bigram.h"
#include "witan/data/prepare.h"

namespace witan {
namespace {

constexpr uint64_t kTokenizerText = 256 << 20;  // bytes a tokenizer learns from: more does not change it much

std::vector<fs::path> split_paths(const std::string& list) {
  std::vector<fs::path> paths;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) paths.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

uint64_t total_bytes(const Sources& sources) {
  uint64_t bytes = 0;
  for (const Source& source : sources.files) bytes += source.bytes;
  return bytes;
}

CorpusOptions corpus_options(const DataConfig& config) {
  CorpusOptions options;
  options.json_key = config.json_key;
  options.bad_row_share = config.bad_row_share;
  return options;
}

Tokenizer train_tokenizer(const DataConfig& config, const Sources& sources, Progress& progress) {
  const double start = progress.now();
  BpeTrainer trainer(config.bpe);
  uint64_t used = 0;
  TaskProgress counting(progress, "reading text", static_cast<double>(total_bytes(sources)), "B");
  read_corpus(sources.files, corpus_options(config), [&](const Document& document) {
    if (used < kTokenizerText) trainer.add(document.text);
    used += document.text.size();
    counting.update(static_cast<double>(document.source_bytes));
  });
  TaskProgress merging(progress, "training the tokenizer", static_cast<double>(config.bpe.vocab_size), "merges");
  Tokenizer tokenizer = trainer.train([&](int64_t done, int64_t) { merging.update(static_cast<double>(done)); });
  progress.note(cat("tokenizer    byte-level BPE of ", tokenizer.vocab_size(), " entries, trained on ",
                    format_bytes(static_cast<double>(std::min(used, kTokenizerText))), " of text in ",
                    format_duration(progress.now() - start)));
  return tokenizer;
}

std::shared_ptr<const Tokenizer> find_tokenizer(const DataConfig& config, const RunFolder& folder,
                                                const Sources& sources, Progress& progress) {
  if (fs::exists(folder.tokenizer())) return std::make_shared<Tokenizer>(Tokenizer::load(folder.tokenizer()));
  const auto tokenizer = std::make_shared<Tokenizer>(
      config.tokenizer.empty() ? train_tokenizer(config, sources, progress) : Tokenizer::load(config.tokenizer));
  tokenizer->save(folder.tokenizer());
  return tokenizer;
}

fs::path tokenize(const DataConfig& config, const RunFolder& folder, const Sources& sources,
                  const std::shared_ptr<const Tokenizer>& tokenizer, Progress& progress) {
  const double start = progress.now();
  fs::create_directories(folder.tokens().parent_path());
  PrepareOptions options;
  options.corpus = corpus_options(config);
  options.split = {config.held_out_fraction, config.seq_length + 1};
  options.threads = usable_cores();
  TaskProgress tokenizing(progress, "tokenizing", static_cast<double>(std::max<uint64_t>(total_bytes(sources), 1)),
                          "B");
  const PreparedDataset prepared =
      prepare_dataset(sources.files, text_encoder(tokenizer), folder.tokens(), options,
                      [&](const PrepareProgress& at) { tokenizing.update(static_cast<double>(at.source_bytes)); });
  const CorpusStatistics& corpus = prepared.corpus;
  progress.note(
      cat("text         ", format_bytes(static_cast<double>(corpus.text_bytes)), " in ", corpus.documents,
          " documents: ", format_count(static_cast<double>(prepared.train.tokens)), " tokens to train on, ",
          format_count(static_cast<double>(prepared.held_out.tokens)), " held out",
          prepared.reused ? " (tokenized before)" : cat(", tokenized in ", format_duration(progress.now() - start))));
  if (corpus.bad_rows > 0)
    progress.note(cat("warning: ", corpus.bad_rows, " of ", corpus.rows, " rows are broken; see ",
                      folder.tokens().string(), ".quarantine.jsonl"));
  if (corpus.replaced > 0)
    progress.note(cat("warning: ", corpus.replaced, " invalid UTF-8 sequences were replaced by U+FFFD"));
  return prepared.prefix;
}

}  // namespace

RunData prepare_run_data(const RunConfig& config, const RunFolder& folder, Progress& progress) {
  RunData run;
  fs::path prefix = config.data.data_path;
  if (prefix.empty()) {
    const Sources sources = find_sources(config.data.data.empty() ? default_corpus() : split_paths(config.data.data));
    run.tokenizer = find_tokenizer(config.data, folder, sources, progress);
    prefix = tokenize(config.data, folder, sources, run.tokenizer, progress);
  } else {
    run.tokenizer = find_tokenizer(config.data, folder, {}, progress);
  }

  run.batch.end_of_text = run.tokenizer->end_of_text();
  run.batch.reset_position_ids = config.data.reset_position_ids;
  run.batch.reset_attention_mask = config.data.reset_attention_mask;
  run.batch.eod_mask_loss = config.data.eod_mask_loss;
  run.batch.vocab_size = run.tokenizer->vocab_size();
  validate(run.batch);

  const auto split = split_documents(open_tokens(prefix, run.tokenizer->end_of_text()),
                                     {config.data.held_out_fraction, config.data.seq_length + 1});
  const auto seed = static_cast<uint64_t>(config.train.seed);
  run.train = std::make_shared<Samples>(split.train, SamplesOptions{config.data.seq_length, seed, true});
  run.held_out = std::make_shared<Samples>(split.held_out, SamplesOptions{config.data.seq_length, seed, false});
  return run;
}

std::vector<Batch> held_out_batches(const RunData& data, const RunConfig& config, int rank) {
  const int64_t size = config.train.micro_batch_size, ranks = config.parallel.ranks;
  const int64_t samples =
      std::min(config.train.eval_iters * config.train.global_batch_size, data.held_out->per_epoch());
  const int64_t per_rank = (samples + size * ranks - 1) / (size * ranks);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < per_rank; ++i) {
    const int64_t first = (i * ranks + rank) * size;
    Batch batch = make_batch(*data.held_out, first, size, data.batch);
    const int64_t real = std::clamp<int64_t>(samples - first, 0, size) * batch.sequence_length;
    for (auto target = static_cast<size_t>(real); target < batch.loss_mask.size(); ++target)
      batch.loss_mask[target] = 0;
    batch.loss_tokens = std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f);
    batches.push_back(std::move(batch));
  }
  return batches;
}

double target_bytes(const std::vector<Batch>& batches, const Tokenizer& tokenizer) {
  double bytes = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0 && batch.targets[i] != tokenizer.end_of_text())
        bytes += static_cast<double>(tokenizer.token_bytes(batch.targets[i]).size());
  return bytes;
}

double bigram_bits_per_byte(const RunData& data, const std::vector<Batch>& batches) {
  const BigramModel model =
      count_bigrams(data.train->dataset(), data.tokenizer->vocab_size(), data.tokenizer->end_of_text());
  double bits = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0) bits -= std::log2(model.probability(batch.tokens[i], batch.targets[i]));
  const double bytes = target_bytes(batches, *data.tokenizer);
  return bytes > 0 ? bits / bytes : 0;
}

}  // namespace witan
