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
  std::shared_ptr<const SampleSource> train, held_out;  // held_out is null in Megatron-Core's order without evaluations
  BatchOptions batch;
  std::string fingerprint;                 // of the tokens, which must not change when the run resumes
  std::vector<fs::path> shards = {};       // prefixes of the tokens' files
  std::vector<ValidationSet> sets = {};    // of valid_data
  std::vector<std::string> warnings = {};  // about text that was left out or replaced, as already reported
  std::vector<std::string> notes = {};     // about the packing of samples, as already reported
};

// The share of text that is held out, the same in a run and in commands that prepare shards.
SplitOptions split_options(const DataConfig& config);

// Throws ConfigError unless the shards hold conversations if sft is set, and text otherwise.
void require_kind_of_shards(const DataConfig& config, const TokenDataset& tokens);

// How text is read; the format of conversations is not set.
CorpusOptions corpus_options(const DataConfig& config);

// Warnings about conversations that did not fit into samples: "3 of 9 conversations are longer than ...".
std::vector<std::string> describe_packing(const SampleSource& samples);

// How batches treat end-of-text tokens. Throws ConfigError if an option needs such a token and the tokenizer has none.
BatchOptions batch_options(const DataConfig& config, const Tokenizer& tokenizer);

// Training and held-out text from the token shards `prefix`. Throws DataError, CorruptionError, IoError.
RunData open_run_data(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer, const fs::path& prefix);

// Text that a run tokenizes into one dataset: all of its text, or one part of a mixture.
struct TextToTokenize {
  std::string place;  // for messages
  Sources sources;
  fs::path tokens;  // prefix of the token shards
};
// `all`: the sources of the whole text; `prefix`: the beginning of the run's token prefixes. Throws DataError.
std::vector<TextToTokenize> texts_to_tokenize(const DataConfig& config, const Sources& all, const fs::path& prefix);
// Throws DataError if all of its files are empty.
void require_text(const TextToTokenize& text);

// Checks that the text of the configuration exists, and that each file begins with UTF-8. Throws DataError,
// CorruptionError, IoError.
void check_sources(const DataConfig& config);

// Trains or loads the tokenizer, keeps a copy of it in the run's folder, and tokenizes the text. Work that an earlier
// start did on the same text with the same options is reused. A run that has saved a checkpoint resumes with the
// tokenizer and the tokens in its folder, even if the text is gone.
// Sets of valid_data are read before the text is tokenized, and text of too few bytes is refused before that, so that
// errors come early. Reports to `progress`. Throws ConfigError, DataError, CorruptionError, IoError, DiskFullError.
RunData prepare_run_data(const RunConfig& config, const RunFolder& folder, Progress& progress);

// Opens the data that prepare_run_data() of another process of the run has completed.
RunData open_prepared_run_data(const RunConfig& config, const RunFolder& folder);

// The number of samples of held-out text, or of a validation set, in an evaluation: at most eval_iters global batches.
// With full_validation all, except for a set that is evaluated at the end.
int64_t evaluation_samples(const RunData& data, const TrainConfig& config);
int64_t evaluation_samples(const ValidationSet& set, const TrainConfig& config);

// This data-parallel rank's micro-batches of the first `samples` samples of held-out text, the same in every
// evaluation. All ranks get equally many; the last ones are filled up with rows that have no targets.
std::vector<Batch> held_out_batches(const RunData& data, int64_t samples, int64_t micro_batch_size, int rank = 0,
                                    int64_t ranks = 1);
// Makes evaluation batches of other samples.
std::vector<Batch> evaluation_batches(const SampleSource& held_out, const BatchOptions& options, int64_t samples,
                                      int64_t micro_batch_size, int rank = 0, int64_t ranks = 1);

// UTF-8 bytes of the text of the batches' targets.
double target_bytes(const std::vector<Batch>& batches, const Tokenizer& tokenizer);

// Bits per byte, on the targets of the batches, of an interpolated Kneser-Ney bigram model of the training tokens, or
// of 2^25 of them from documents spread over the data.
double bigram_bits_per_byte(const RunData& data, const std::vector<Batch>& batches);

}  // namespace witan
