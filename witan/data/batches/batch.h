// A micro-batch in the form that the model takes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "witan/data/datasets/column.h"
#include "witan/data/samples/sample_source.h"

namespace witan {

// The document number of padding. Padding is no token: no router counts it and no expert sees it. A token whose loss is
// masked is still a token.
inline constexpr int32_t kPadding = -1;

// B sequences of S tokens; every array is [B, S], rows one after another.
struct Batch {
  int64_t sequences = 0;        // B
  int64_t sequence_length = 0;  // S
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;       // the token after each token
  std::vector<int32_t> positions;     // within the row, or since the last end of text
  std::vector<int32_t> sequence_ids;  // documents of a row, from 0, or kPadding: attention stays among equal ids
  std::vector<float> loss_mask;       // the target's weight in the loss: 0 where it does not count, mostly 1
  int64_t loss_tokens = 0;            // targets that count: this micro-batch's share of the loss's denominator
  std::vector<Column> columns = {};   // those that the batch was asked for
  int64_t loss_sequences = 0;         // documents of rows with targets that count, for means over documents

  void count_loss_tokens();  // in loss_mask, and the documents that have them
};

// Megatron-LM's names. All three look for end_of_text among the *input* tokens, as Megatron-LM does; the end-of-text
// token itself still belongs to the document that it ends.
struct BatchOptions {
  std::optional<int32_t> end_of_text = {};
  bool reset_position_ids = false;    // positions restart after an end of text
  bool reset_attention_mask = false;  // sequence_ids count up after an end of text; otherwise all are 0
  bool eod_mask_loss = false;         // no loss where the input is an end of text
  int64_t vocab_size = 0;             // > 0: larger ids are an error
  std::vector<ColumnSpec> columns = {};
};

// Throws ConfigError if an option needs an end-of-text token and there is none.
void validate(const BatchOptions& options);

// Samples [first, first + sequences) as one batch. Of packed samples positions restart with each piece of a document,
// and sequence_ids keep pieces apart, whatever the options; of conversations only the targets that are learnt from
// count; what is left of a row is padding (end_of_text, or 0), with kPadding as its id and no target that counts.
// Throws DataError for an id outside the vocabulary or a column that the samples do not have, CorruptionError for
// damage in the dataset.
Batch make_batch(const SampleSource& samples, int64_t first, int64_t sequences, const BatchOptions& options);

// Selects places of a batch's rows, run by run: a context-parallel rank's part of the sequences. loss_tokens counts
// those of the selected places, and loss_sequences the documents whose first target that counts is among them; columns
// per sample stay as they are. The runs lie within the sequence. A batch with
// sizes only, without arrays, gives another one of the same kind.
struct PlaceRange {
  int64_t begin = 0, size = 0;
};
Batch take_places(const Batch& batch, const std::vector<PlaceRange>& runs);

// Shifts a batch for the k-th module of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2; k >= 1):
// place i of a row gets the token, position, target, loss mask and columns of place i + k. Where that is beyond the
// row, or in another document (sequence_ids), these are 0, so that nothing is predicted across the end of either.
// sequence_ids stay those of the batch: they say what attention sees. A batch with sizes only gives another one of the
// same kind. (Megatron-LM's roll_tensor.)
Batch look_ahead(const Batch& batch, int64_t k);

}  // namespace witan
