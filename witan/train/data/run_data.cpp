#include "witan/train/data/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/stats/bigram.h"
#include "witan/train/data/data_fingerprint.h"
#include "witan/train/data/least_text.h"
#include "witan/train/data/mixture_data.h"
#include "witan/train/data/run_conversations.h"
#include "witan/train/data/run_samples.h"
#include "witan/train/data/run_tokenizer.h"

namespace witan {
namespace {

Sources checked_sources(const DataConfig& config) {
  Sources sources = find_sources(config.data.empty() ? default_corpus() : paths_of({config.data}));
  check_encoding(sources.files, corpus_options(config));
  return sources;
}

// Whether the run has saved a checkpoint, so that the data in its folder are complete and its own.
bool has_saved(const RunFolder& folder) {
  return !step_folders(folder.checkpoints()).empty();
}

// Null if the tokenizer is yet to be trained on the text.
std::shared_ptr<const Tokenizer> find_tokenizer(const DataConfig& config, const RunFolder& folder) {
  const fs::path own = folder.tokenizer();
  const bool keeps = has_saved(folder) && fs::exists(own);
  if (!keeps && config.tokenizer.empty()) return nullptr;
  return std::make_shared<Tokenizer>(Tokenizer::load(keeps ? own : fs::path(config.tokenizer)));
}

// Copies the given tokenizer and chat template to the run's folder once the text is known to be usable, so that a start
// that fails before leaves no folder. A trained tokenizer is there already.
void keep_given(const DataConfig& config, const RunFolder& folder, const Tokenizer& tokenizer,
                const std::shared_ptr<const ConversationFormat>& format) {
  if (!config.tokenizer.empty() && !(has_saved(folder) && fs::exists(folder.tokenizer())))
    tokenizer.save(folder.tokenizer());
  if (format) keep_chat_template(*format, folder.path());
}

// Training and validation samples in Megatron-Core's order; the test split is evaluated once, at the end.
RunData open_megatron_data(const RunConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer,
                           const fs::path& prefix) {
  const MegatronSamples samples = open_megatron_samples(config, prefix);
  const auto& [train, valid, test] = samples.parts;
  RunData data{.tokenizer = tokenizer,
               .train = train,
               .held_out = valid,
               .batch = batch_options(config.data, *tokenizer),
               .fingerprint = fingerprint_of(samples.prefixes, samples.fingerprint),
               .shards = samples.prefixes};
  if (test) data.sets.push_back({.name = kTestSet, .samples = test, .at_end = true});
  return data;
}

// Tokenizes the sources into shards of this prefix. Adds to `warnings`.
void tokenize(const DataConfig& config, const RunFolder& folder, const fs::path& prefix, const Sources& sources,
              const std::shared_ptr<const Tokenizer>& tokenizer, std::shared_ptr<const ConversationFormat> format,
              Progress& progress, std::vector<std::string>& warnings) {
  const double start = progress.now();
  create_folders(folder.tokens().parent_path());
  PrepareOptions options;
  options.corpus = corpus_options(config);
  options.corpus.conversations = std::move(format);
  options.split = split_options(config);
  options.threads = usable_cores();
  const fs::path shown = folder.place() / prefix.lexically_relative(folder.path());
  options.replacing = [&](const auto& changes) { progress.note(describe_replacing(shown, changes)); };
  options.dropping = [&] { progress.note(describe_dropping(shown)); };
  TaskProgress tokenizing(progress, "tokenizing",
                          static_cast<double>(std::max<uint64_t>(total_bytes(sources.files), 1)), "B");
  const PreparedDataset prepared =
      prepare_dataset(sources.files, text_encoder(tokenizer), prefix, options,
                      [&](const PrepareProgress& at) { tokenizing.update(static_cast<double>(at.source_bytes)); });
  const CorpusStatistics& corpus = prepared.corpus;
  // Otherwise the run is about to report that its text is too short.
  if (config.sft || std::min(prepared.train.tokens, prepared.held_out.tokens) > config.seq_length)
    progress.note(
        cat("text         ", format_bytes(static_cast<double>(corpus.text_bytes)), " in ",
            counted(corpus.documents, config.sft ? "conversation" : "document"), ": ",
            format_count(static_cast<double>(prepared.train.tokens)), " tokens to train on, ",
            format_count(static_cast<double>(prepared.held_out.tokens)), " for validation",
            prepared.reused ? " (tokenized before)" : cat(", tokenized in ", format_duration(progress.now() - start))));
  std::vector<std::string> losses = describe_losses(corpus);
  const fs::path quarantine = folder.place() / prefix.lexically_relative(folder.path());
  if (corpus.bad_rows > 0) losses.front() += cat("; see ", quarantine.string(), ".quarantine.jsonl");
  std::ranges::move(losses, std::back_inserter(warnings));
}

RunData open_mixture_data(const RunConfig& config, const std::shared_ptr<const Tokenizer>& tokenizer,
                          const fs::path& prefix) {
  MixtureData mixture = open_mixture(config, prefix, tokenizer->end_of_text());
  return {.tokenizer = tokenizer,
          .train = std::move(mixture.train),
          .held_out = std::move(mixture.held_out),
          .batch = batch_options(config.data, *tokenizer),
          .fingerprint = fingerprint_of(mixture.prefixes),
          .shards = mixture.prefixes};
}

}  // namespace

void require_kind_of_shards(const DataConfig& config, const TokenDataset& tokens) {
  const bool pairs = holds_pairs(tokens);
  require<ConfigError>(pairs == config.preferences, "preferences = ", config.preferences ? "true" : "false", ": ",
                       tokens.name(), pairs ? " has" : " has no", " pairs of answers",
                       pairs
                           ? ", of which rejected ones are no text to learn from; set preferences = true and objective "
                             "= preference"
                           : "; give shards that `witan data --sft --preferences` writes");
  require<ConfigError>(tokens.conversations() == config.sft, "sft = ", config.sft ? "true" : "false", ": ",
                       tokens.name(), " has tokens of ",
                       config.sft ? "text; give shards of conversations, which `witan data --sft` writes"
                                  : "conversations; set sft = true");
}

CorpusOptions corpus_options(const DataConfig& config) {
  CorpusOptions options;
  options.json_key = config.json_key;
  options.bad_row_share = config.bad_row_share;
  options.replace_invalid_utf8 = config.replace_invalid_utf8;
  if (config.sft) options.messages_key = config.messages_key;
  options.preferences = config.preferences;
  return options;
}

std::vector<std::string> describe_packing(const SampleSource& samples) {
  std::vector<std::string> found;
  if (!samples.dataset().conversations()) return found;
  const SampleSource::PackedSize& size = samples.packed_size();
  const int64_t all = size.documents + size.left_out, most = samples.sequence_length() + 1;
  if (holds_pairs(samples.dataset())) {
    if (size.left_out > 0)
      found.push_back(cat(size.left_out, " of ", counted(all, "pair"), " of answers",
                          size.left_out == 1 ? " does" : " do", " not fit into seq_length = ", most - 1,
                          " with both texts and ", size.left_out == 1 ? "is" : "are", " left out"));
    return found;
  }
  if (size.cut > 0)
    found.push_back(cat(size.cut, " of ", counted(all, "conversation"), size.cut == 1 ? " is" : " are",
                        " longer than seq_length + 1 = ", most, " tokens: the rest of them is cut off"));
  if (size.left_out > 0)
    found.push_back(cat(size.left_out, " of ", counted(all, "conversation"), size.left_out == 1 ? " has" : " have",
                        " no token to learn from in the first ", most, " and ", size.left_out == 1 ? "is" : "are",
                        " left out"));
  return found;
}

SplitOptions split_options(const DataConfig& config) {
  return {config.held_out_fraction, config.seq_length + 1};
}

BatchOptions batch_options(const DataConfig& config, const Tokenizer& tokenizer) {
  BatchOptions options;
  options.end_of_text = tokenizer.end_of_text();
  // Packing keeps its own document boundaries. An end-of-text token matters only within packed text, or without
  // packing.
  const bool by_token = !config.packs() || (!config.sft && options.end_of_text);
  options.reset_position_ids = config.reset_position_ids && by_token;
  options.reset_attention_mask = config.reset_attention_mask && by_token;
  options.eod_mask_loss = config.eod_mask_loss;
  options.vocab_size = tokenizer.vocab_size();
  validate(options);
  return options;
}

RunData open_run_data(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, const fs::path& prefix) {
  if (config.data.megatron_samples()) return open_megatron_data(config, tokenizer, prefix);
  if (is_mixture(config.data)) return open_mixture_data(config, tokenizer, prefix);
  const auto seed = static_cast<uint64_t>(config.train.seed);
  const auto tokens = open_tokens(prefix, tokenizer->end_of_text());
  require_kind_of_shards(config.data, *tokens);
  const auto split = split_documents(tokens, split_options(config.data));
  return {.tokenizer = tokenizer,
          .train = open_samples(split.train, config.data, seed, true),
          .held_out = open_samples(split.held_out, config.data, seed, false),
          .batch = batch_options(config.data, *tokenizer),
          .fingerprint = fingerprint_of({prefix}),
          .shards = {prefix}};
}

std::vector<TextToTokenize> texts_to_tokenize(const DataConfig& config, const Sources& all, const fs::path& prefix) {
  if (!is_mixture(config)) return {{config.data.empty() ? "the built-in text" : config.data, all, prefix}};
  std::vector<TextToTokenize> texts;
  for (const TextPart& part : text_parts(config, prefix))
    texts.push_back({part.text.string(), find_sources({part.text}), part.tokens});
  return texts;
}

void require_text(const TextToTokenize& text) {
  const auto files = std::ssize(text.sources.files);
  require<DataError>(total_bytes(text.sources.files) > 0, text.place, ": there is no text: ", counted(files, "file"),
                     " of 0 bytes");
}

void check_sources(const DataConfig& config) {
  if (!config.reads_shards()) checked_sources(config);
}

namespace {

void add_validation_sets(const RunConfig& config, const RunFolder& folder, RunData& data) {
  std::ranges::move(
      read_validation_sets(config.data, *data.tokenizer,
                           kept_conversation_format(config.data, *data.tokenizer, folder.path()), has_saved(folder)),
      std::back_inserter(data.sets));
}

// How full packed samples are; for text, compared with concatenation.
std::string describe_samples(const SampleSource& samples, const DataConfig& config) {
  const SampleSource::PackedSize size = samples.packed_size();
  const int64_t places = samples.per_epoch() * config.seq_length;
  std::string line = cat("samples      ", samples.per_epoch(), " of seq_length ", config.seq_length, ", ");
  if (config.sft) return line + cat(100 * size.places / places, " % full (packing = ", config.packing, ")");
  line += fmt::format("{:.2f} % of it padding (data_packing = {}): {} of {} cut, where {} would be end to end",
                      100 * static_cast<double>(places - size.places) / static_cast<double>(places),
                      config.data_packing, size.cut, counted(size.documents, "document"), size.cut_end_to_end);
  if (size.left_out > 0) line += cat("; ", size.left_out, " of fewer than two tokens left out");
  return line;
}

// Reports warnings of packing and of validation sets.
RunData completed(RunData data, const RunConfig& config, Progress& progress) {
  std::vector<std::string> warnings = describe_packing(*data.train);
  for (const ValidationSet& set : data.sets) std::ranges::copy(set.warnings, std::back_inserter(warnings));
  for (const std::string& warning : warnings) progress.note("warning: " + warning);
  std::ranges::move(warnings, std::back_inserter(data.warnings));
  if (config.data.megatron_samples())
    progress.note(cat("samples      in Megatron-Core's order: ", *data.train->size(), " to train on, ",
                      data.held_out ? *data.held_out->size() : 0, " for validation"));
  if (data.train->packed()) {
    data.notes.push_back(describe_samples(*data.train, config.data));
    progress.note(data.notes.back());
  }
  return data;
}

RunData prepare_tokens(const RunConfig& config, const RunFolder& folder, Progress& progress) {
  const DataConfig& data = config.data;
  if (data.reads_shards()) {
    const auto given = find_tokenizer(data, folder);
    const std::vector<std::string> warnings = check_shard_tokenizers(data, *given, has_saved(folder));
    for (const std::string& warning : warnings) progress.note("warning: " + warning);
    RunData opened = open_run_data(config, given, data.data_path);
    opened.warnings = warnings;
    keep_given(data, folder, *given, has_saved(folder) ? nullptr : find_conversation_format(config, *given));
    add_validation_sets(config, folder, opened);
    return opened;
  }
  const bool mixed = is_mixture(data);
  const fs::path shards =
      (mixed ? text_parts(data, folder.tokens()).front().tokens : folder.tokens()).string() + ".idx";
  if (has_saved(folder) && fs::exists(shards) && fs::exists(folder.tokenizer())) {
    progress.note(cat("text         the tokens that the run started with, ", folder.tokens().string()));
    RunData opened = open_run_data(config, find_tokenizer(data, folder), folder.tokens());
    add_validation_sets(config, folder, opened);
    return opened;
  }
  const Sources sources = checked_sources(data);
  const std::vector<TextToTokenize> texts = texts_to_tokenize(data, sources, folder.tokens());
  std::vector<std::string> warnings;
  if (!sources.skipped.empty()) warnings.push_back("left out: " + describe_skipped(sources.skipped));
  auto warn = [&, said = size_t{0}]() mutable {
    for (; said < warnings.size(); ++said) progress.note("warning: " + warnings[said]);
  };
  warn();  // before work that may take a long time
  auto tokenizer = find_tokenizer(data, folder);
  for (const TextToTokenize& text : texts) {
    require_text(text);
    require_enough_text(text.place, text.sources.files, data, tokenizer.get());
  }
  check_validation_text(data);
  require_enough_validation_text(data, tokenizer.get());
  if (!tokenizer)
    tokenizer = std::make_shared<Tokenizer>(
        trained_tokenizer(folder.tokenizer(), data.bpe, sources.files, corpus_options(data), progress));
  const auto format = find_conversation_format(config, *tokenizer);
  auto sets =
      read_validation_sets(data, *tokenizer, format, has_saved(folder));  // before the text, since a set may be refused
  for (const TextToTokenize& text : texts)
    tokenize(data, folder, text.tokens, text.sources, tokenizer, format, progress, warnings);
  warn();
  RunData opened = open_run_data(config, tokenizer, folder.tokens());
  keep_given(data, folder, *tokenizer, format);
  opened.sets = std::move(sets);
  opened.warnings = std::move(warnings);
  return opened;
}

}  // namespace

RunData prepare_run_data(const RunConfig& config, const RunFolder& folder, Progress& progress) {
  return completed(prepare_tokens(config, folder, progress), config, progress);
}

RunData open_prepared_run_data(const RunConfig& config, const RunFolder& folder) {
  const fs::path tokens = config.data.reads_shards() ? fs::path(config.data.data_path) : folder.tokens();
  RunData data = open_run_data(config, std::make_shared<Tokenizer>(Tokenizer::load(folder.tokenizer())), tokens);
  add_validation_sets(config, folder, data);
  return data;
}

namespace {

int64_t evaluation_samples(const SampleSource& samples, const TrainConfig& config, bool whole) {
  const int64_t all = samples.size().value_or(samples.per_epoch());
  return whole ? all : std::min(config.eval_iters * config.global_batch_size, all);
}

}  // namespace

int64_t evaluation_samples(const RunData& data, const TrainConfig& config) {
  return data.held_out ? evaluation_samples(*data.held_out, config, config.full_validation) : 0;
}

int64_t evaluation_samples(const ValidationSet& set, const TrainConfig& config) {
  return evaluation_samples(*set.samples, config, config.full_validation && !set.at_end);
}

std::vector<Batch> held_out_batches(const RunData& data, int64_t samples, int64_t micro_batch_size, int rank,
                                    int64_t ranks) {
  if (!data.held_out) return {};
  return evaluation_batches(*data.held_out, data.batch, samples, micro_batch_size, rank, ranks);
}

namespace {

// Micro-batch of samples [first, first + size). If the source ends before, copies of its first sample fill it up.
Batch batch_within(const SampleSource& samples, int64_t first, int64_t size, const BatchOptions& options) {
  const int64_t there = std::clamp<int64_t>(samples.size().value_or(first + size) - first, 0, size);
  if (there == size) return make_batch(samples, first, size, options);
  Batch batch = make_batch(samples, first, there, options);
  const Batch filler = make_batch(samples, 0, 1, options);
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (; batch.sequences < size; ++batch.sequences) {
    append(batch.tokens, filler.tokens);
    append(batch.targets, filler.targets);
    append(batch.positions, filler.positions);
    append(batch.sequence_ids, filler.sequence_ids);
    append(batch.loss_mask, filler.loss_mask);
  }
  return batch;
}

}  // namespace

std::vector<Batch> evaluation_batches(const SampleSource& held_out, const BatchOptions& options, int64_t samples,
                                      int64_t micro_batch_size, int rank, int64_t ranks) {
  const int64_t size = micro_batch_size;
  const int64_t per_rank = (samples + size * ranks - 1) / (size * ranks);
  const int64_t own = rank * per_rank * size;
  for (int64_t i = own; i < std::min(own + per_rank * size, samples); ++i) held_out.prefetch(i);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < per_rank; ++i) {
    const int64_t first = (rank * per_rank + i) * size;
    Batch batch = batch_within(held_out, first, size, options);
    const int64_t real = std::clamp<int64_t>(samples - first, 0, size) * batch.sequence_length;
    for (auto target = static_cast<size_t>(real); target < batch.loss_mask.size(); ++target) {
      batch.loss_mask[target] = 0;
      batch.sequence_ids[target] = kPadding;  // filled-up rows are padding
    }
    for (float& weight : batch.loss_mask) weight = weight > 0 ? 1 : 0;  // a validation loss weights all targets equally
    batch.count_loss_tokens();
    batches.push_back(std::move(batch));
  }
  return batches;
}

double target_bytes(const std::vector<Batch>& batches, const Tokenizer& tokenizer) {
  double bytes = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0) bytes += static_cast<double>(tokenizer.text_bytes(batch.targets[i]));
  return bytes;
}

namespace {

// Bounds the time that the baseline takes at the start of a run.
constexpr int64_t kMostBigramTokens = 1 << 25;

}  // namespace

double bigram_bits_per_byte(const RunData& data, const std::vector<Batch>& batches) {
  const BigramModel model = count_bigrams(data.train->dataset(), data.tokenizer->vocab_size(),
                                          data.tokenizer->end_of_text(), kMostBigramTokens);
  double bits = 0;
  for (const Batch& batch : batches)
    for (size_t i = 0; i < batch.targets.size(); ++i)
      if (batch.loss_mask[i] > 0) bits -= std::log2(model.probability(batch.tokens[i], batch.targets[i]));
  const double bytes = target_bytes(batches, *data.tokenizer);
  return bytes > 0 ? bits / bytes : 0;
}

}  // namespace witan
