#include "witan/data/samples/mixture.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kUnlimited = INT64_MAX / 2;

std::vector<double> shares_of(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) {
    require<ConfigError>(std::isfinite(weight) && weight >= 0, "a weight of the data is ", weight,
                         ", and must be a number from 0 on");
    sum += weight;
  }
  require<ConfigError>(sum > 0 && std::isfinite(sum), "the weights of the data are all 0: give one above it");
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

}  // namespace

// Steps through a phase, sample by sample.
struct Mixture::Cursor {
  using Next = std::pair<double, size_t>;  // time and source

  const Mixture& mixture;
  const Phase& phase;
  std::vector<int64_t> counts;  // taken since the phase began
  std::vector<Next> heap;       // of each source that has more, the earliest on top
  int64_t samples = 0;          // so many were taken

  Cursor(const Mixture& mixture_, const Phase& phase_, std::vector<int64_t> counts_)
      : mixture(mixture_), phase(phase_), counts(std::move(counts_)) {
    for (size_t s = 0; s < counts.size(); ++s)
      if (counts[s] < mixture.left(phase, s)) heap.emplace_back(mixture.time_of(phase, s, counts[s]), s);
    std::ranges::make_heap(heap, std::greater<>{});
    samples = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  // Returns nothing once every source is exhausted.
  std::optional<Place> next() {
    if (heap.empty()) return {};
    std::ranges::pop_heap(heap, std::greater<>{});
    const size_t source = heap.back().second;
    heap.pop_back();
    const Place place{source, phase.before[source] + counts[source]++};
    if (counts[source] < mixture.left(phase, source)) {
      heap.emplace_back(mixture.time_of(phase, source, counts[source]), source);
      std::ranges::push_heap(heap, std::greater<>{});
    }
    ++samples;
    return place;
  }
};

struct Mixture::Block {
  size_t phase;
  int64_t number;
  std::vector<Place> places;
};

Mixture::Mixture(MixtureOptions options) : options_(std::move(options)) {
  assert(!options_.phases.empty() && options_.phases.front().begin == 0);
  for (const MixturePhase& given : options_.phases) {
    assert(given.weights.size() == options_.per_epoch.size());
    Phase phase{given.begin, shares_of(given.weights), std::vector<int64_t>(given.weights.size(), 0)};
    if (!phases_.empty()) {
      const Phase& last = phases_.back();
      require<ConfigError>(given.begin > last.begin, "the weights of the data change in rising steps");
      const int64_t length = given.begin - last.begin;
      const Cursor end = seek(last, length);
      if (end.samples < length) break;
      for (size_t s = 0; s < end.counts.size(); ++s) phase.before[s] = last.before[s] + end.counts[s];
    }
    phases_.push_back(std::move(phase));
  }
  if (options_.max_epochs <= 0) return;
  const Phase& last = phases_.back();
  size_ = last.begin;
  for (size_t s = 0; s < last.weights.size(); ++s) *size_ += left(last, s);
}

Mixture::~Mixture() = default;

size_t Mixture::phase_of(int64_t index) const {
  const auto after = std::ranges::upper_bound(phases_, index, {}, &Phase::begin);
  return static_cast<size_t>(after - phases_.begin()) - 1;
}

double Mixture::time_of(const Phase& phase, size_t source, int64_t sample) const {
  const Philox random(options_.seed, Philox::stream_of("mixture") + source);
  const double u = random.uniform(static_cast<uint64_t>(phase.before[source] + sample));
  return (static_cast<double>(sample) + u) / phase.weights[source];
}

int64_t Mixture::left(const Phase& phase, size_t source) const {
  if (phase.weights[source] == 0) return 0;
  if (options_.max_epochs <= 0) return kUnlimited;
  const double most = options_.max_epochs * static_cast<double>(options_.per_epoch[source]);
  return std::max<int64_t>(static_cast<int64_t>(most) - phase.before[source], 0);
}

// How many samples of each source have a time up to this one; their sum.
int64_t Mixture::counts_at(const Phase& phase, double time, std::vector<int64_t>& counts) const {
  int64_t all = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    const int64_t most = left(phase, s);
    // Rounding apart, samples before this one have such a time, and none after the next.
    int64_t count = std::clamp<int64_t>(static_cast<int64_t>(time * phase.weights[s]) - 1, 0, most);
    while (count < most && time_of(phase, s, count) <= time) ++count;
    all += counts[s] = count;
  }
  return all;
}

// The cursor after so many samples of the phase, or after the last one if there are fewer: a time somewhat before is
// found by bisection, and the rest is stepped through.
Mixture::Cursor Mixture::seek(const Phase& phase, int64_t samples) const {
  const size_t sources = phase.weights.size();
  std::vector<int64_t> counts(sources, 0), tried(sources, 0);
  // Without limits, about `time` samples come before a time, give or take one per source.
  double low = 0, high = static_cast<double>(samples) + static_cast<double>(sources);
  while (counts_at(phase, high, tried) < samples && has_more(phase, tried)) high *= 2;
  double middle = static_cast<double>(samples) - static_cast<double>(sources);
  for (int64_t behind = samples; behind > kBlock && high > low;) {
    if (!(middle > low && middle < high)) middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    const int64_t there = counts_at(phase, middle, tried);
    if (there <= samples) {
      low = middle;
      behind = samples - there;
      std::swap(counts, tried);
    } else {
      high = middle;
    }
    middle = low;  // then halfway
  }
  Cursor cursor(*this, phase, std::move(counts));
  while (cursor.samples < samples && cursor.next()) continue;
  return cursor;
}

bool Mixture::has_more(const Phase& phase, const std::vector<int64_t>& counts) const {
  for (size_t s = 0; s < counts.size(); ++s)
    if (counts[s] < left(phase, s)) return true;
  return false;
}

std::shared_ptr<const Mixture::Block> Mixture::block(size_t phase, int64_t number) const {
  const MutexLock lock(mutex_);
  for (const auto& known : recent_)
    if (known && known->phase == phase && known->number == number) return known;
  Cursor cursor = seek(phases_[phase], number * kBlock);
  Block made{phase, number, {}};
  made.places.reserve(kBlock);
  while (static_cast<int64_t>(made.places.size()) < kBlock) {
    const auto place = cursor.next();
    if (!place) break;
    made.places.push_back(*place);
  }
  std::ranges::rotate(recent_, recent_.end() - 1);
  return recent_[0] = std::make_shared<const Block>(std::move(made));
}

Mixture::Place Mixture::at(int64_t index) const {
  require<DataError>(!size_ || index < *size_, "the data have ", size_.value_or(0),
                     " samples within data_max_epochs, and sample ", index,
                     " is asked for: raise it, or lower "
                     "train_iters");
  const size_t phase = phase_of(index);
  const int64_t offset = index - phases_[phase].begin;
  return block(phase, offset / kBlock)->places[static_cast<size_t>(offset % kBlock)];
}

std::vector<int64_t> Mixture::taken(int64_t samples) const {
  const Phase& phase = phases_[phase_of(std::max<int64_t>(samples - 1, 0))];
  std::vector<int64_t> counts = seek(phase, samples - phase.begin).counts;
  for (size_t s = 0; s < counts.size(); ++s) counts[s] += phase.before[s];
  return counts;
}

namespace {

// A view of what somebody else holds.
std::shared_ptr<const TokenDataset> held(const std::shared_ptr<const SampleSource>& samples) {
  return {samples, &samples->dataset()};
}

}  // namespace

MixedSamples::MixedSamples(std::vector<Source> sources, std::vector<MixturePhase> phases, double max_epochs,
                           uint64_t seed)
    : sources_(std::move(sources)) {
  MixtureOptions options{{}, std::move(phases), max_epochs, seed};
  std::vector<std::shared_ptr<const TokenDataset>> documents;
  for (const Source& source : sources_) {
    options.per_epoch.push_back(source.samples->per_epoch());
    documents.push_back(held(source.samples));
    per_epoch_ += source.samples->per_epoch();
  }
  documents_ = std::make_shared<JoinedDataset>(std::move(documents));
  mixture_ = std::make_unique<Mixture>(std::move(options));
}

std::vector<SourceUse> MixedSamples::use_of(int64_t samples) const {
  const std::vector<int64_t> taken = mixture_->taken(std::min(samples, size().value_or(samples)));
  std::vector<SourceUse> uses;
  int64_t of_one = 0;  // samples of an epoch of the last of them
  for (size_t s = 0; s < sources_.size(); ++s) {
    if (s == 0 || uses.back().name != sources_[s].name) {
      uses.push_back({sources_[s].name, 0, 0});
      of_one = 0;
    }
    of_one += sources_[s].samples->per_epoch();
    uses.back().samples += taken[s];
    uses.back().epochs = static_cast<double>(uses.back().samples) / static_cast<double>(of_one);
  }
  return uses;
}

void MixedSamples::read(int64_t index, std::span<int32_t> out) const {
  const Mixture::Place place = mixture_->at(index);
  sources_[place.source].samples->read(place.sample, out);
}

void MixedSamples::prefetch(int64_t index) const {
  const Mixture::Place place = mixture_->at(index);
  sources_[place.source].samples->prefetch(place.sample);
}

std::vector<ColumnSpec> MixedSamples::columns() const {
  std::vector<ColumnSpec> all = sources_.front().samples->columns();
  for (const Source& source : sources_)
    std::erase_if(all, [known = source.samples->columns()](const ColumnSpec& column) {
      return std::ranges::find(known, column) == known.end();
    });
  return all;
}

void MixedSamples::read_column(int64_t index, const ColumnSpec& column, std::span<float> out) const {
  const Mixture::Place place = mixture_->at(index);
  sources_[place.source].samples->read_column(place.sample, column, out);
}

SampleSource::PackedSize MixedSamples::packed_size() const {
  PackedSize all;
  for (const Source& source : sources_) {
    const PackedSize one = source.samples->packed_size();
    all.documents += one.documents;
    all.cut += one.cut;
    all.left_out += one.left_out;
    all.places += one.places;
    all.cut_end_to_end += one.cut_end_to_end;
  }
  return all;
}

std::vector<SampleSource::Piece> MixedSamples::pieces_of(int64_t index) const {
  const Mixture::Place place = mixture_->at(index);
  std::vector<Piece> pieces = sources_[place.source].samples->pieces_of(place.sample);
  for (Piece& one : pieces) one.document += documents_->first_of(place.source);
  return pieces;
}

}  // namespace witan
