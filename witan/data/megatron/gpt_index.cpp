#include "witan/data/megatron/gpt_index.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "witan/base/error.h"

namespace witan::megatron {

uint64_t NumpyRandom::interval(uint64_t most) {
  if (most == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(most);
  uint64_t value = 0;
  do {
    value = engine_();
    if (most > UINT32_MAX) value = value << 32 | engine_();
    value &= mask;
  } while (value > most);
  return value;
}

namespace {

constexpr double kWholeEpoch = 0.80;

// Appends `times` copies of the ids [begin, end), shuffled together.
void append_documents(int64_t begin, int64_t end, int64_t times, NumpyRandom& random, std::vector<int32_t>& documents) {
  const size_t first = documents.size();
  for (int64_t t = 0; t < times; ++t)
    for (int64_t id = begin; id < end; ++id) documents.push_back(static_cast<int32_t>(id));
  random.shuffle(std::span(documents).subspan(first));
}

// Cuts the documents, laid end to end, every `length` tokens; a sample reads one token more, the next one's first.
void cut_samples(const IndexedDataset& dataset, int64_t length, int64_t samples, GptIndex& index) {
  size_t document = 0;
  int64_t offset = 0;
  const auto record = [&] {
    index.place.push_back(static_cast<int64_t>(document));
    index.offset.push_back(static_cast<int32_t>(offset));
  };
  index.place.reserve(static_cast<size_t>(samples) + 1);
  index.offset.reserve(static_cast<size_t>(samples) + 1);
  record();
  for (int64_t sample = 0; sample < samples; ++sample) {
    int64_t lacking = length + 1;
    for (;;) {
      const int64_t left = dataset.sequence_length(index.document[document]) - offset;
      lacking -= left;
      if (lacking <= 0) {
        offset += lacking + left - 1;
        break;
      }
      ++document;
      offset = 0;
    }
    record();
  }
}

// Samples [0, first) and [first, all), each shuffled.
void shuffle_samples(int64_t first, int64_t all, NumpyRandom& random, std::vector<uint32_t>& shuffle) {
  shuffle.resize(static_cast<size_t>(all));
  std::iota(shuffle.begin(), shuffle.end(), 0u);
  random.shuffle(std::span(shuffle).first(static_cast<size_t>(first)));
  random.shuffle(std::span(shuffle).subspan(static_cast<size_t>(first)));
}

}  // namespace

Epochs plan_epochs(int64_t tokens, std::optional<int64_t> wanted, int64_t sequence_length) {
  require<DataError>(tokens >= 1, "it has no token");
  Epochs epochs;
  epochs.tokens = tokens;
  if (wanted) epochs.count = std::max<int64_t>((*wanted * sequence_length + 1 + tokens - 1) / tokens, 1);
  epochs.samples = (epochs.count * tokens - 1) / sequence_length;
  if (epochs.count == 1) return epochs;
  const int64_t before = ((epochs.count - 1) * tokens - 1) / sequence_length;
  const int64_t of_one = (tokens - 1) / sequence_length;
  if (*wanted - before < static_cast<int64_t>(kWholeEpoch * static_cast<double>(of_one))) epochs.before = before;
  return epochs;
}

GptIndex build_gpt_index(const IndexedDataset& dataset, int64_t begin, int64_t end, const Epochs& epochs,
                         int64_t sequence_length, uint32_t seed) {
  require<DataError>(epochs.samples < int64_t{UINT32_MAX} - 1, dataset.name(), ": ", epochs.samples,
                     " samples are more than an index of Megatron's numbers; use data_samples = \"witan\"");
  GptIndex index;
  NumpyRandom random(seed);
  index.document.reserve(static_cast<size_t>(epochs.count * (end - begin)));
  append_documents(begin, end, epochs.before ? epochs.count - 1 : epochs.count, random, index.document);
  if (epochs.before) append_documents(begin, end, 1, random, index.document);
  cut_samples(dataset, sequence_length, epochs.samples, index);
  shuffle_samples(epochs.before.value_or(epochs.samples), epochs.samples, random, index.shuffle);
  return index;
}

}  // namespace witan::megatron
