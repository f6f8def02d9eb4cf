#include "witan/data/batches/batch.h"

#include <algorithm>
#include <cassert>
#include <span>

#include "witan/base/error.h"

namespace witan {
namespace {

// Positions, ids and mask of one row, from its tokens [S].
void mark_documents(std::span<const int32_t> tokens, size_t row, const BatchOptions& options, Batch& batch) {
  int32_t position = 0, id = 0;
  for (size_t s = 0; s < tokens.size(); ++s) {
    const bool ends = options.end_of_text && tokens[s] == *options.end_of_text;
    batch.positions[row + s] = position++;
    batch.sequence_ids[row + s] = id;
    batch.loss_mask[row + s] = ends && options.eod_mask_loss ? 0.0f : 1.0f;
    if (ends && options.reset_position_ids) position = 0;
    if (ends && options.reset_attention_mask) ++id;
  }
}

// [B, S] -> [B, sum of sizes]
template <class T>
std::vector<T> places_of(const std::vector<T>& from, const Batch& batch, const std::vector<PlaceRange>& runs) {
  std::vector<T> to;
  if (from.empty()) return to;
  for (int64_t b = 0; b < batch.sequences; ++b)
    for (const auto& [begin, size] : runs) {
      const auto first = from.begin() + b * batch.sequence_length + begin;
      to.insert(to.end(), first, first + size);
    }
  return to;
}

// Calls visit(place) for the first target that counts of each document of each row.
template <class Visit>
void for_first_targets(const Batch& batch, const Visit& visit) {
  const auto length = static_cast<size_t>(batch.sequence_length);
  bool found = false;  // in the present document
  for (size_t i = 0; i < batch.loss_mask.size(); ++i) {
    if (i % length == 0 || batch.sequence_ids[i] != batch.sequence_ids[i - 1]) found = false;
    if (found || batch.loss_mask[i] <= 0) continue;
    found = true;
    visit(i);
  }
}

}  // namespace

void Batch::count_loss_tokens() {
  loss_tokens = std::ranges::count_if(loss_mask, [](float weight) { return weight > 0; });
  loss_sequences = 0;
  for_first_targets(*this, [&](size_t) { ++loss_sequences; });
}

void validate(const BatchOptions& options) {
  const bool needs = options.reset_position_ids || options.reset_attention_mask || options.eod_mask_loss;
  require<ConfigError>(
      options.end_of_text.has_value() || !needs,
      "reset_position_ids, reset_attention_mask and eod_mask_loss need a tokenizer with an end-of-text token");
}

namespace {

void check_tokens(std::span<const int32_t> tokens, const SampleSource& samples, const BatchOptions& options) {
  const int32_t largest = *std::max_element(tokens.begin(), tokens.end());
  require<DataError>(options.vocab_size <= 0 || largest < options.vocab_size, samples.dataset().name(), ": token id ",
                     largest, " is outside the vocabulary of ", options.vocab_size,
                     ": was it made with another tokenizer?");
}

// One row of pieces of documents, apart from each other, and of padding after them.
void fill_with_pieces(const SampleSource& samples, int64_t index, size_t row, const BatchOptions& options,
                      Batch& batch) {
  const auto length = static_cast<size_t>(batch.sequence_length);
  size_t at = row;
  int32_t id = 0;
  std::vector<int32_t> tokens;
  std::vector<float> loss;
  for (const SampleSource::Piece& piece : samples.pieces_of(index)) {
    const auto places = static_cast<size_t>(piece.places);
    tokens.resize(places + 1);
    loss.resize(places + 1);
    samples.dataset().read(piece.document, piece.begin, tokens);
    samples.dataset().read_loss(piece.document, piece.begin, loss);
    check_tokens(tokens, samples, options);
    for (size_t i = 0; i < places; ++i, ++at) {
      const bool masked = options.eod_mask_loss && tokens[i] == options.end_of_text;
      batch.tokens[at] = tokens[i];
      batch.targets[at] = tokens[i + 1];
      batch.positions[at] = static_cast<int32_t>(i);
      batch.sequence_ids[at] = id;
      batch.loss_mask[at] = masked ? 0.0f : loss[i + 1];
    }
    ++id;
  }
  for (int32_t position = 0; at < row + length; ++at, ++position) {
    batch.tokens[at] = batch.targets[at] = options.end_of_text.value_or(0);
    batch.positions[at] = position;
    batch.sequence_ids[at] = kPadding;
  }
}

Column read_column(const SampleSource& samples, int64_t first, int64_t sequences, const ColumnSpec& spec) {
  const std::vector<ColumnSpec> known = samples.columns();
  require<DataError>(
      std::ranges::find(known, spec) != known.end(), samples.dataset().name(), ": has no column \"", spec.name,
      "\" with a value per ", spec.per == ColumnSpec::Per::token ? "token" : "sample",
      ", which the run's objective reads: write it beside the tokens (docs/formats/indexed_dataset.md), or let "
      "the run sample its own answers and rewards (rollouts = true, with sft and packing = none)");
  const size_t size = spec.per == ColumnSpec::Per::token ? static_cast<size_t>(samples.sequence_length()) : 1;
  Column column{spec, std::vector<float>(static_cast<size_t>(sequences) * size)};
  for (int64_t b = 0; b < sequences; ++b)
    samples.read_column(first + b, spec, std::span(column.values).subspan(static_cast<size_t>(b) * size, size));
  return column;
}

}  // namespace

Batch make_batch(const SampleSource& samples, int64_t first, int64_t sequences, const BatchOptions& options) {
  const auto length = static_cast<size_t>(samples.sequence_length());
  const size_t count = static_cast<size_t>(sequences) * length;
  Batch batch{sequences,
              samples.sequence_length(),
              std::vector<int32_t>(count),
              std::vector<int32_t>(count),
              std::vector<int32_t>(count),
              std::vector<int32_t>(count),
              std::vector<float>(count),
              0};
  std::vector<int32_t> sample(length + 1);
  for (int64_t b = 0; b < sequences; ++b) {
    const size_t row = static_cast<size_t>(b) * length;
    if (samples.packed()) {
      fill_with_pieces(samples, first + b, row, options, batch);
      continue;
    }
    samples.read(first + b, sample);
    check_tokens(sample, samples, options);
    std::copy_n(sample.begin(), length, batch.tokens.begin() + static_cast<ptrdiff_t>(row));
    std::copy_n(sample.begin() + 1, length, batch.targets.begin() + static_cast<ptrdiff_t>(row));
    mark_documents(std::span(sample).first(length), row, options, batch);
  }
  batch.count_loss_tokens();
  for (const ColumnSpec& spec : options.columns) batch.columns.push_back(read_column(samples, first, sequences, spec));
  return batch;
}

Batch take_places(const Batch& batch, const std::vector<PlaceRange>& runs) {
  int64_t length = 0;
  for (const auto& [begin, size] : runs) {
    assert(begin >= 0 && size >= 0 && begin + size <= batch.sequence_length);
    length += size;
  }
  Batch taken{.sequences = batch.sequences,
              .sequence_length = length,
              .tokens = places_of(batch.tokens, batch, runs),
              .targets = places_of(batch.targets, batch, runs),
              .positions = places_of(batch.positions, batch, runs),
              .sequence_ids = places_of(batch.sequence_ids, batch, runs),
              .loss_mask = places_of(batch.loss_mask, batch, runs)};
  taken.count_loss_tokens();
  std::vector<char> begins(batch.loss_mask.size());  // a document's targets may lie on several ranks
  for_first_targets(batch, [&](size_t place) { begins[place] = 1; });
  taken.loss_sequences = std::ranges::count(places_of(begins, batch, runs), 1);
  for (const auto& [spec, values] : batch.columns)
    taken.columns.push_back({spec, spec.per == ColumnSpec::Per::token ? places_of(values, batch, runs) : values});
  return taken;
}

Batch look_ahead(const Batch& batch, int64_t k) {
  assert(k >= 1);
  Batch ahead = batch;
  if (batch.tokens.empty()) return ahead;
  const auto length = static_cast<size_t>(batch.sequence_length), by = static_cast<size_t>(k);
  const auto is_there = [&](size_t i) {
    return i % length + by < length && batch.sequence_ids[i + by] == batch.sequence_ids[i];
  };
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const size_t from = i + by;
    const bool there = is_there(i);
    ahead.tokens[i] = there ? batch.tokens[from] : 0;
    ahead.positions[i] = there ? batch.positions[from] : 0;
    ahead.targets[i] = there ? batch.targets[from] : 0;
    ahead.loss_mask[i] = there ? batch.loss_mask[from] : 0;
  }
  for (size_t c = 0; c < batch.columns.size(); ++c) {
    if (batch.columns[c].spec.per != ColumnSpec::Per::token) continue;
    for (size_t i = 0; i < batch.tokens.size(); ++i)
      ahead.columns[c].values[i] = is_there(i) ? batch.columns[c].values[i + by] : 0;
  }
  ahead.count_loss_tokens();
  return ahead;
}

}  // namespace witan
