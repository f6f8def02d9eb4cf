#include "witan/train/step/step_inputs.h"

#include <algorithm>
#include <cassert>

#include "witan/base/error.h"
#include "witan/comm/context.h"

namespace witan {

namespace {

std::vector<ColumnSpec> columns_of(const Batch& batch) {
  std::vector<ColumnSpec> specs;
  for (const Column& column : batch.columns) specs.push_back(column.spec);
  return specs;
}

}  // namespace

std::vector<Batch> context_part(const std::vector<Batch>& batches, const Group& context) {
  std::vector<Batch> parts;
  for (const Batch& batch : batches) {
    const kernels::PositionRuns runs = context_positions(batch.sequence_length, context.size(), context.rank());
    const int64_t length = batch.sequence_length / context.size(), early = std::min(runs.split, length);
    parts.push_back(take_places(batch, {{runs.first, early}, {runs.second, length - early}}));
  }
  return parts;
}

StepInputs::StepInputs(Stream& stream, const std::vector<Batch>& batches, int64_t mtp_modules, bool counts_sequences)
    : columns_(columns_of(batches.front())),
      counts_sequences_(counts_sequences),
      counts_(stream.empty({1 + mtp_modules + counts_sequences}, DType::f64, MemoryTag::workspace)) {
  places_.resize(static_cast<size_t>(1 + mtp_modules));
  for (const Batch& batch : batches) {
    const Shape shape{batch.sequences, batch.sequence_length}, flat{shape.elements()};
    const auto take = [&](const Shape& of, DType dtype) { return stream.empty(of, dtype, MemoryTag::workspace); };
    sequence_ids_.push_back(take(shape, DType::i32));
    for (std::vector<Place>& places : places_) {
      Place& place = places.emplace_back();
      place.tokens = take(shape, DType::i32);
      place.positions = take(shape, DType::i32);
      place.targets = take(flat, DType::i32);
      place.mask = take(flat, DType::f32);
      for (size_t c = 0; c < columns_.size(); ++c) {
        const bool per_token = columns_[c].per == ColumnSpec::Per::token, first = &places == &places_.front();
        place.columns.push_back(per_token ? take(flat, DType::f32)
                                : first   ? take({batch.sequences}, DType::f32)
                                          : places_.front().back().columns[c]);
      }
    }
  }
}

bool StepInputs::fits(const std::vector<Batch>& batches) const {
  if (batches.size() != sequence_ids_.size()) return false;
  for (size_t i = 0; i < batches.size(); ++i)
    if (sequence_ids_[i].shape() != Shape{batches[i].sequences, batches[i].sequence_length} ||
        columns_of(batches[i]) != columns_)
      return false;
  return true;
}

void StepInputs::upload(Stream& stream, const std::vector<Batch>& batches,
                        const std::vector<std::vector<Batch>>& ahead) {
  assert(ahead.size() + 1 == places_.size());
  std::vector<double> counts;
  const auto of_all = [&](const std::vector<Batch>& of, std::vector<Place>& places) {
    upload(stream, of, places);
    double count = 0;
    for (const Batch& batch : of) count += static_cast<double>(batch.loss_tokens);
    counts.push_back(count);
  };
  of_all(batches, places_.front());
  for (size_t module = 0; module < ahead.size(); ++module) of_all(ahead[module], places_[module + 1]);
  if (counts_sequences_) {
    double sequences = 0;
    for (const Batch& batch : batches) sequences += static_cast<double>(batch.loss_sequences);
    counts.push_back(sequences);
  }
  for (size_t i = 0; i < batches.size(); ++i) stream.write(sequence_ids_[i], batches[i].sequence_ids.data());
  stream.write(counts_, counts.data());
}

void StepInputs::upload(Stream& stream, const std::vector<Batch>& batches, std::vector<Place>& places) {
  for (size_t i = 0; i < batches.size(); ++i) {
    stream.write(places[i].tokens, batches[i].tokens.data());
    stream.write(places[i].positions, batches[i].positions.data());
    stream.write(places[i].targets, batches[i].targets.data());
    stream.write(places[i].mask, batches[i].loss_mask.data());
    for (size_t c = 0; c < columns_.size(); ++c) {
      assert(batches[i].columns[c].spec == columns_[c]);
      stream.write(places[i].columns[c], batches[i].columns[c].values.data());
    }
  }
}

const Tensor& StepInputs::column(int64_t micro_batch, std::string_view name, int64_t ahead) const {
  const auto found = std::ranges::find(columns_, name, &ColumnSpec::name);
  if (found == columns_.end())
    throw Error(ExitCode::internal, cat("the step's batches have no column \"", name,
                                        "\": Objective::columns() must name those that it reads"));
  return place(micro_batch, ahead).columns[static_cast<size_t>(found - columns_.begin())];
}

ModelInput StepInputs::input(int64_t micro_batch) const {
  const Place& here = place(micro_batch, 0);
  ModelInput input{here.tokens, {here.positions, sequence_ids_[static_cast<size_t>(micro_batch)]}};
  for (int64_t module = 1; module <= mtp_modules(); ++module)
    input.ahead.push_back({place(micro_batch, module).tokens, place(micro_batch, module).positions});
  return input;
}

}  // namespace witan
