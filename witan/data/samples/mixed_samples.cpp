#include "witan/data/samples/mixed_samples.h"

#include <algorithm>
#include <utility>

namespace witan {
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
