// Prepares the samples of a run from text: tokenizer, token shards, training and validation splits, and the bigram
// baseline.
#pragma once

#include <memory>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/data/corpus/corpus.h"
#include "witan/data/corpus/sources.h"
#include "witan/data/datasets/split.h"
#include "witan/data/samples/sample_source.h"
#include "witan/report/progress/progress.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"
#include "witan/train/data/validation_sets.h"
#include "witan/train/state/run_folder.h"

namespace witan {

struct RunData {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const SampleSource> train, held_out;  // the latter null in Megatron-Core's order without evaluations
  BatchOptions batch;
  std::string fingerprint;                 // of the tokens: a run resumes with those it began with
  std::vector<fs::path> shards = {};       // the prefixes of their files
  std::vector<ValidationSet> sets = {};    // of valid_data
  std::vector<std::string> warnings = {};  // of text that was left out or replaced, as they were said
  std::vector<std::string> notes = {};     // likewise: how samples are filled
};

// How much of the text is held out, the same for a run and for who prepares its shards.
SplitOptions split_options(const DataConfig& config);

// Throws ConfigError unless shards hold conversations where sft is set, and text where it is not.
void require_kind_of_shards(const DataConfig& config, const TokenDataset& tokens);

// How its text is read, but for conversations.
CorpusOptions corpus_options(const DataConfig& config);

// What became of conversations that do not fit into samples: "3 of 9 conversations are longer than ...", if it applies.
std::vector<std::string> describe_packing(const SampleSource& samples);

// How batches treat ends of text. Throws ConfigError when an option needs one and the tokenizer has none.
BatchOptions batch_options(const DataConfig& config, const Tokenizer& tokenizer);

// Training and held-out text from the token shards `prefix`. Throws DataError, CorruptionError, IoError.
RunData open_run_data(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, const fs::path& prefix);

// What a run tokenizes: all of its text, or each of several parts that are mixed.
struct TextToTokenize {
  std::string place;  // for messages
  Sources sources;
  fs::path tokens;  // the prefix of its shards
};
// `all`: the sources of all of it; `prefix`: with which the run's tokens begin. Throws DataError.
std::vector<TextToTokenize> texts_to_tokenize(const DataConfig& config, const Sources& all, const fs::path& prefix);
// Throws DataError where all of its files are empty.
void require_text(const TextToTokenize& text);

// Whether there is text where the config says, and it is UTF-8 as far as each file's beginning shows. Throws
// DataError, CorruptionError, IoError.
void check_sources(const DataConfig& config);

// Trains or loads the tokenizer (its copy lies in the run folder from then on) and tokenizes the text, unless that was
// done before, from the same text with the same options: what a start that ended early has left is no more than work
// that need not be done again. A run that has saved a checkpoint resumes with the tokenizer and the tokens in its
// folder, wherever the text is by then.
// Sets of valid_data are read before the text is tokenized, as one of them may be refused, and text of too few bytes
// for a sample is refused before any of it is. Says what it does on `progress`. Throws ConfigError, DataError,
// CorruptionError, IoError, DiskFullError.
RunData prepare_run_data(const RunConfig& config, const RunFolder& folder, Progress& progress);

// What prepare_run_data() of another process of the run, which is done, left in the folder.
RunData open_prepared_run_data(const RunConfig& config, const RunFolder& folder);

// Samples of held-out text, or of a validation set, that an evaluation takes: eval_iters global batches, or as many as
// there are; all with full_validation, but of a set for the end.
int64_t evaluation_samples(const RunData& data, const TrainConfig& config);
int64_t evaluation_samples(const ValidationSet& set, const TrainConfig& config);

// The first `samples` samples of held-out text in micro-batches of so many, for one of `ranks` data-parallel ranks: the
// same in every evaluation. All ranks get equally many batches; where samples run out, batches without targets fill up.
std::vector<Batch> held_out_batches(const RunData& data, int64_t samples, int64_t micro_batch_size, int rank = 0,
                                    int64_t ranks = 1);
// Likewise of these samples.
std::vector<Batch> evaluation_batches(const SampleSource& held_out, const BatchOptions& options, int64_t samples,
                                      int64_t micro_batch_size, int rank = 0, int64_t ranks = 1);

// UTF-8 bytes of text that the batches' targets stand for.
double target_bytes(const std::vector<Batch>& batches, const Tokenizer& tokenizer);

// Bits per byte of an interpolated Kneser-Ney bigram model of the training tokens (of 2^25 of them, from documents all
// over the data, where there are more), on the targets of the batches.
double bigram_bits_per_byte(const RunData& data, const std::vector<Batch>& batches);

}  // namespace witan
