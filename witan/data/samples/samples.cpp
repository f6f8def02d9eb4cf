#include "witan/data/samples/samples.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/data/datasets/conversation_dataset.h"

namespace witan {
namespace {

constexpr int64_t kPartMadeAhead = 16;  // of an epoch: within its last such part the next one is made

}  // namespace

struct Samples::Epoch {
  Epoch(const TokenDataset& dataset, const SamplesOptions& options, int64_t number, int64_t samples)
      : shuffle(options.shuffle),
        document_order(dataset.documents(), options.seed, stream("document order", number)),
        sample_order(samples, options.seed, stream("sample order", number)) {
    if (dataset.conversations()) return;
    begins.reserve(static_cast<size_t>(dataset.documents()) + 1);
    begins.push_back(0);
    for (int64_t place = 0; place < dataset.documents(); ++place)
      begins.push_back(begins.back() + dataset.length(document_at(place)));
  }

  static uint64_t stream(std::string_view name, int64_t epoch) {
    return Philox::stream_of(name) + static_cast<uint64_t>(epoch);
  }
  int64_t document_at(int64_t place) const { return shuffle ? document_order(place) : place; }
  int64_t sample_at(int64_t place) const { return shuffle ? sample_order(place) : place; }

  bool shuffle;
  Permutation document_order, sample_order;
  std::vector<int64_t> begins;  // [documents + 1]: where the document at each place begins in the epoch's stream
};

Samples::Samples(std::shared_ptr<const TokenDataset> dataset, SamplesOptions options)
    : dataset_(std::move(dataset)), options_(options) {
  require<ConfigError>(options.sequence_length >= 1, "seq_length must be at least 1, got ", options.sequence_length);
  if (dataset_->conversations()) {
    holds_pairs(*dataset_) ? pack_pairs() : pack();
    return;
  }
  per_epoch_ = (dataset_->tokens() - 1) / options.sequence_length;
  require<DataError>(dataset_->tokens() >= 1 && per_epoch_ >= 1, dataset_->name(), " has ", dataset_->tokens(),
                     " tokens, but one sample of seq_length ", options.sequence_length, " needs ",
                     options.sequence_length + 1, ": give more text, or choose a smaller seq_length");
}

Samples::~Samples() = default;

std::vector<SourceUse> Samples::use_of(int64_t samples) const {
  return {{dataset_->name(), samples, static_cast<double>(samples) / static_cast<double>(per_epoch_)}};
}

std::shared_ptr<const Samples::Epoch> Samples::epoch(int64_t number) const {
  std::promise<std::shared_ptr<const Epoch>> made;
  std::shared_future<std::shared_ptr<const Epoch>> known;
  {
    const MutexLock lock(mutex_);
    for (const RecentEpoch& recent : recent_)
      if (recent.number == number) known = recent.epoch;
    if (!known.valid()) {
      recent_[1] = std::move(recent_[0]);
      recent_[0] = {number, made.get_future().share()};
    }
  }
  if (known.valid()) return known.get();
  // Not under the lock: of millions of documents it takes seconds, in which others read on from the epoch before.
  try {
    auto epoch = std::make_shared<const Epoch>(*dataset_, options_, number, per_epoch_);
    made.set_value(epoch);
    return epoch;
  } catch (...) {  // there is too little memory
    made.set_exception(std::current_exception());
    throw;
  }
}

void Samples::pack() {
  std::vector<int64_t> sizes;
  std::vector<float> loss;
  for (int64_t d = 0; d < dataset_->documents(); ++d) {
    const int64_t length = dataset_->length(d), used = std::min(length, options_.sequence_length + 1);
    loss.assign(static_cast<size_t>(used), 0.0f);
    if (used > 0) dataset_->read_loss(d, 0, loss);
    const bool learns = used > 1 && std::any_of(loss.begin() + 1, loss.end(), [](float weight) { return weight > 0; });
    sizes.push_back(learns ? used - 1 : 0);
    packed_size_.documents += learns;
    packed_size_.left_out += !learns;
    packed_size_.cut += learns && used < length;
    packed_size_.places += sizes.back();
  }
  packed_ = pack_documents(sizes, options_.sequence_length, options_.packing, options_.seed);
  per_epoch_ = packed_->samples();
  require<DataError>(per_epoch_ >= 1, dataset_->name(), " has no conversation with a token to learn from in its first ",
                     options_.sequence_length + 1, " tokens: give more conversations, or choose a larger seq_length");
}

void Samples::pack_pairs() {
  together_ = 2;
  std::vector<int64_t> sizes;
  std::vector<float> marks;
  for (int64_t d = 0; d + 1 < dataset_->documents(); d += together_) {
    int64_t size = 0;
    bool learns = true;
    for (int64_t i = 0; i < together_; ++i) {
      marks.assign(static_cast<size_t>(dataset_->length(d + i)), 0.0f);
      if (!marks.empty()) dataset_->read_loss(d + i, 0, marks);
      require<CorruptionError>(!marks.empty() && marks.front() == (i == 0 ? kChosenMark : kRejectedMark),
                               dataset_->name(), ": document ", d + i, " is not the ", i == 0 ? "chosen" : "rejected",
                               " answer of a pair: prepare the shards again");
      learns &= std::any_of(marks.begin() + 1, marks.end(), [](float weight) { return weight > 0; });
      size += std::ssize(marks) - 1;
    }
    const bool fits = learns && size <= options_.sequence_length;
    sizes.push_back(fits ? size : 0);
    packed_size_.documents += fits;
    packed_size_.left_out += !fits;
    packed_size_.places += sizes.back();
  }
  packed_ = pack_documents(sizes, options_.sequence_length, options_.packing, options_.seed);
  per_epoch_ = packed_->samples();
  require<DataError>(per_epoch_ >= 1, dataset_->name(), " has no pair of answers whose texts, with their prompts, fit ",
                     "together into seq_length = ", options_.sequence_length,
                     ": give shorter ones, or choose a larger seq_length");
}

std::vector<SampleSource::Piece> Samples::pieces_of(int64_t index) const {
  const auto sample = static_cast<size_t>(epoch(index / per_epoch_)->sample_at(index % per_epoch_));
  std::vector<Piece> pieces;
  for (int64_t i = packed_->begins[sample]; i < packed_->begins[sample + 1]; ++i)
    for (int64_t place = 0; place < together_; ++place) {
      const int64_t document = packed_->documents[static_cast<size_t>(i)] * together_ + place;
      pieces.push_back({document, 0, std::min(dataset_->length(document) - 1, options_.sequence_length)});
    }
  return pieces;
}

template <class Visit>
void Samples::for_pieces(int64_t index, const Visit& visit) const {
  const auto epoch = this->epoch(index / per_epoch_);
  int64_t at = epoch->sample_at(index % per_epoch_) * options_.sequence_length;
  const auto& begins = epoch->begins;
  auto place = std::upper_bound(begins.begin(), begins.end(), at) - begins.begin() - 1;
  for (int64_t left = options_.sequence_length + 1; left > 0; ++place) {
    const int64_t begin = begins[static_cast<size_t>(place)], end = begins[static_cast<size_t>(place) + 1];
    const int64_t tokens = std::min(end - at, left);
    if (tokens > 0) visit(epoch->document_at(place), at - begin, tokens);
    left -= tokens;
    at = end;
  }
}

void Samples::read(int64_t index, std::span<int32_t> out) const {
  assert(!packed() && index >= 0 && static_cast<int64_t>(out.size()) == options_.sequence_length + 1);
  for_pieces(index, [&](int64_t document, int64_t begin, int64_t tokens) {
    dataset_->read(document, begin, out.first(static_cast<size_t>(tokens)));
    out = out.subspan(static_cast<size_t>(tokens));
  });
}

void Samples::read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const {
  if (packed()) return SampleSource::read_column(index, column, out);
  std::vector<float> values(out.size() + 1);
  std::span<float> left = values;
  for_pieces(index, [&](int64_t document, int64_t begin, int64_t tokens) {
    dataset_->read_column(column, document, begin, left.first(static_cast<size_t>(tokens)));
    left = left.subspan(static_cast<size_t>(tokens));
  });
  std::copy(values.begin() + 1, values.end(), out.begin());
}

void Samples::prefetch(int64_t index) const {
  // The order of the next epoch is made before it is needed, while this one is still read.
  if (index % per_epoch_ >= per_epoch_ - per_epoch_ / kPartMadeAhead) epoch(index / per_epoch_ + 1);
  if (packed()) return SampleSource::prefetch(index);
  for_pieces(index,
             [&](int64_t document, int64_t begin, int64_t tokens) { dataset_->prefetch(document, begin, tokens); });
}

}  // namespace witan
