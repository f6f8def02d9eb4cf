#include "witan/data/samples/packed_samples.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"

namespace witan {

// Documents order_(first), order_(first + 1) …, packed.
struct PackedSamples::Window {
  int64_t number = 0, first = 0;
  std::vector<int64_t> pieces;  // [documents + 1]: of S places, in the documents before each
  PackedDocuments ends;         // what lies after them
  PackedSize size;

  int64_t samples() const { return pieces.back() + ends.samples(); }
};

// The order in which an epoch reads windows.
struct PackedSamples::Epoch {
  int64_t number = 0;
  std::vector<int64_t> windows;
  std::vector<int64_t> begins;  // [windows + 1]: the first sample of each
};

namespace {

uint64_t packed_stream(std::string_view name, int64_t number) {
  return Philox::stream_of(name) + static_cast<uint64_t>(number);
}

SampleSource::PackedSize& operator+=(SampleSource::PackedSize& sum, const SampleSource::PackedSize& one) {
  sum.documents += one.documents;
  sum.cut += one.cut;
  sum.left_out += one.left_out;
  sum.places += one.places;
  sum.cut_end_to_end += one.cut_end_to_end;
  return sum;
}

}  // namespace

PackedSamples::PackedSamples(std::shared_ptr<const TokenDataset> dataset, PackedSamplesOptions options)
    : dataset_(std::move(dataset)),
      options_(options),
      order_(dataset_->documents(), options.seed, Philox::stream_of("packed documents")) {
  require<ConfigError>(options.sequence_length >= 1, "seq_length must be at least 1, got ", options.sequence_length);
  assert(options.window >= 1 && !dataset_->conversations());
  samples_of_.resize(static_cast<size_t>((dataset_->documents() + options.window - 1) / options.window));
  std::vector<PackedSize> sizes(samples_of_.size());
  const auto windows = static_cast<int64_t>(samples_of_.size());
  ThreadPool threads(static_cast<int>(std::clamp<int64_t>(windows, 1, std::max(options.threads, 1))));
  threads.run(windows, [&](int64_t number) {
    const auto window = pack(number);
    samples_of_[static_cast<size_t>(number)] = window->samples();
    sizes[static_cast<size_t>(number)] = window->size;
  });
  for (size_t w = 0; w < sizes.size(); ++w) {
    per_epoch_ += samples_of_[w];
    size_ += sizes[w];
  }
  // Each window has counted in places, of which a sample has S.
  size_.cut_end_to_end = (size_.cut_end_to_end + options.sequence_length / 2) / options.sequence_length;
  require<DataError>(per_epoch_ >= 1, dataset_->name(),
                     " has no document of two tokens, and so nothing to predict: give more text");
}

PackedSamples::~PackedSamples() = default;

std::vector<SourceUse> PackedSamples::use_of(int64_t samples) const {
  return {{dataset_->name(), samples, static_cast<double>(samples) / static_cast<double>(per_epoch_)}};
}

void PackedSamples::read(int64_t, std::span<int32_t>) const {
  assert(!"packed samples are read piece by piece");
}

std::shared_ptr<const PackedSamples::Window> PackedSamples::pack(int64_t number) const {
  const int64_t capacity = options_.sequence_length;
  auto window = std::make_shared<Window>();
  window->number = number;
  window->first = number * options_.window;
  const int64_t documents = std::min(options_.window, dataset_->documents() - window->first);
  PackedSize& size = window->size;
  std::vector<int64_t> ends;
  ends.reserve(static_cast<size_t>(documents));
  window->pieces.reserve(static_cast<size_t>(documents) + 1);
  window->pieces.push_back(0);
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t pairs = std::max<int64_t>(dataset_->length(order_(window->first + i)) - 1, 0);
    window->pieces.push_back(window->pieces.back() + pairs / capacity);
    ends.push_back(pairs % capacity);
    size.documents += pairs > 0;
    size.left_out += pairs == 0;
    size.cut += pairs > capacity;
    size.places += pairs;
    // End to end, samples begin every S tokens: of S places that the first may have, so many divide the document.
    size.cut_end_to_end += std::clamp<int64_t>(pairs - 1, 0, capacity);
  }
  window->ends = pack_documents(ends, capacity, Packing::best_fit, options_.seed);
  return window;
}

std::shared_ptr<const PackedSamples::Window> PackedSamples::window(int64_t number) const {
  const MutexLock lock(mutex_);
  for (const auto& known : windows_)
    if (known && known->number == number) return known;
  windows_[1] = std::move(windows_[0]);
  windows_[0] = pack(number);
  return windows_[0];
}

std::shared_ptr<const PackedSamples::Epoch> PackedSamples::epoch(int64_t number) const {
  const MutexLock lock(mutex_);
  for (const auto& known : epochs_)
    if (known && known->number == number) return known;
  auto made = std::make_shared<Epoch>();
  made->number = number;
  const auto windows = static_cast<int64_t>(samples_of_.size());
  const Permutation order(windows, options_.seed, packed_stream("packed windows", number));
  made->begins.push_back(0);
  for (int64_t place = 0; place < windows; ++place) {
    made->windows.push_back(order(place));
    made->begins.push_back(made->begins.back() + samples_of_[static_cast<size_t>(made->windows.back())]);
  }
  epochs_[1] = std::move(epochs_[0]);
  epochs_[0] = std::move(made);
  return epochs_[0];
}

std::vector<SampleSource::Piece> PackedSamples::pieces_of(int64_t index) const {
  assert(index >= 0);
  const int64_t capacity = options_.sequence_length;
  const auto epoch = this->epoch(options_.shuffle ? index / per_epoch_ : 0);
  const int64_t at = index % per_epoch_;
  const auto place = std::ranges::upper_bound(epoch->begins, at) - epoch->begins.begin() - 1;
  const auto window = this->window(epoch->windows[static_cast<size_t>(place)]);
  // Another order in every window of every epoch.
  const auto windows = static_cast<int64_t>(samples_of_.size());
  const Permutation order(window->samples(), options_.seed,
                          packed_stream("packed samples", epoch->number * windows + window->number));
  const int64_t sample = order(at - epoch->begins[static_cast<size_t>(place)]);
  const auto& pieces = window->pieces;
  if (sample < pieces.back()) {
    const auto i = std::ranges::upper_bound(pieces, sample) - pieces.begin() - 1;
    return {{order_(window->first + i), (sample - pieces[static_cast<size_t>(i)]) * capacity, capacity}};
  }
  const auto& [documents, begins] = window->ends;
  const auto end = static_cast<size_t>(sample - pieces.back());
  std::vector<Piece> found;
  for (int64_t j = begins[end]; j < begins[end + 1]; ++j) {
    const int64_t i = documents[static_cast<size_t>(j)], document = order_(window->first + i);
    const int64_t begin = (pieces[static_cast<size_t>(i) + 1] - pieces[static_cast<size_t>(i)]) * capacity;
    found.push_back({document, begin, dataset_->length(document) - 1 - begin});
  }
  return found;
}

}  // namespace witan
