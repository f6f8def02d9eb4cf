#include "witan/data/megatron/gpt_samples.h"

#include <algorithm>
#include <cassert>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/data/datasets/token_dataset.h"

namespace witan::megatron {
namespace {

// Sequences [begin, end) of a dataset, as documents.
class SequenceRange final : public TokenDataset {
 public:
  SequenceRange(std::shared_ptr<const IndexedDataset> whole, int64_t begin, int64_t end)
      : whole_(std::move(whole)), begin_(begin), end_(end) {
    for (int64_t s = begin; s < end; ++s) tokens_ += whole_->sequence_length(s);
  }
  int64_t documents() const override { return end_ - begin_; }
  int64_t tokens() const override { return tokens_; }
  int64_t length(int64_t document) const override { return whole_->sequence_length(begin_ + document); }
  void read(int64_t document, int64_t begin, std::span<int32_t> out) const override {
    whole_->read_sequence(begin_ + document, begin, out);
  }
  void prefetch(int64_t document, int64_t begin, int64_t tokens) const override {
    whole_->prefetch_sequence(begin_ + document, begin, tokens);
  }
  std::string name() const override { return whole_->name(); }

 private:
  std::shared_ptr<const IndexedDataset> whole_;
  int64_t begin_, end_, tokens_ = 0;
};

// All that the indices follow from.
std::string key_of(const IndexedDataset& dataset, const GptSamplesOptions& options, const Epochs& epochs) {
  Hasher lengths;
  for (int64_t s = options.begin; s < options.end; ++s) {
    const auto length = static_cast<int32_t>(dataset.sequence_length(s));
    lengths.update(&length, sizeof length);
  }
  return nlohmann::json{{"lengths", lengths.hex()},
                        {"begin", options.begin},
                        {"end", options.end},
                        {"epochs", epochs.count},
                        {"before_last", epochs.before.value_or(-1)},
                        {"sequence_length", options.sequence_length},
                        {"seed", options.seed}}
      .dump();
}

void require_within(int64_t index, int64_t size, const SampleSource& samples) {
  require<DataError>(index < size, samples.dataset().name(), ": sample ", index, " is asked for, but the indices have ",
                     size,
                     ": they are made for train_iters, eval_iters and global_batch_size as they were at the start");
}

}  // namespace

GptSamples::GptSamples(std::shared_ptr<const IndexedDataset> dataset, const GptSamplesOptions& options)
    : dataset_(std::move(dataset)),
      documents_(std::make_shared<SequenceRange>(dataset_, options.begin, options.end)),
      sequence_length_(options.sequence_length) {
  const int64_t tokens = documents_->tokens();
  require<DataError>(tokens > (options.wanted ? 0 : sequence_length_), dataset_->name(), ": of its ",
                     dataset_->sequences(), " sequences the ", options.split, " has ", options.end - options.begin,
                     " with ", tokens, " tokens, too few for a sample of ", sequence_length_,
                     " (seq_length): give more text, or that part a larger share (split)",
                     tokens > 0 ? ", or a smaller seq_length" : "");
  epochs_ = plan_epochs(documents_->tokens(), options.wanted, sequence_length_);
  index_.emplace(options.cache, "gpt", key_of(*dataset_, options, epochs_), [&]() -> IndexFile::Arrays {
    const GptIndex built =
        build_gpt_index(*dataset_, options.begin, options.end, epochs_, sequence_length_, options.seed);
    return {bytes_of(std::span(built.document)), bytes_of(std::span(built.place)), bytes_of(std::span(built.offset)),
            bytes_of(std::span(built.shuffle))};
  });
}

// Epochs are shuffled into each other: each sample is its share of one.
std::vector<SourceUse> GptSamples::use_of(int64_t samples) const {
  const double tokens = static_cast<double>(samples) * static_cast<double>(sequence_length_);
  return {{dataset_->name(), samples, tokens / static_cast<double>(epochs_.tokens)}};
}

template <class Visit>
void GptSamples::for_pieces(int64_t index, const Visit& visit) const {
  require_within(index, epochs_.samples, *this);
  const auto sample = static_cast<size_t>(shuffle_index()[static_cast<size_t>(index)]);
  int64_t offset = offsets()[sample], left = sequence_length_ + 1;
  for (auto place = static_cast<size_t>(places()[sample]); left > 0; ++place) {
    const int64_t sequence = document_index()[place];
    const int64_t tokens = std::min(left, dataset_->sequence_length(sequence) - offset);
    if (tokens > 0) visit(sequence, offset, tokens);
    left -= tokens;
    offset = 0;
  }
}

void GptSamples::read(int64_t index, std::span<int32_t> out) const {
  assert(static_cast<int64_t>(out.size()) == sequence_length_ + 1);
  for_pieces(index, [&](int64_t sequence, int64_t begin, int64_t tokens) {
    dataset_->read_sequence(sequence, begin, out.first(static_cast<size_t>(tokens)));
    out = out.subspan(static_cast<size_t>(tokens));
  });
}

void GptSamples::prefetch(int64_t index) const {
  for_pieces(index, [&](int64_t sequence, int64_t begin, int64_t tokens) {
    dataset_->prefetch_sequence(sequence, begin, tokens);
  });
}

BlendedSamples::BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts) : parts_(std::move(parts)) {
  require<DataError>(parts_.size() <= INT16_MAX, "a blend of ", parts_.size(), " datasets is more than an index of ",
                     "Megatron's numbers: join some of them");
  std::vector<std::shared_ptr<const TokenDataset>> documents;
  for (const auto& part : parts_) {
    documents.push_back(part->documents());
    per_epoch_ += part->per_epoch();
  }
  documents_ = std::make_shared<JoinedDataset>(std::move(documents));
}

void BlendedSamples::make_index(const fs::path& cache, const std::string& key,
                                const std::function<BlendIndex()>& build) {
  index_.emplace(cache, "blend", key, [&]() -> IndexFile::Arrays {
    const BlendIndex built = build();
    return {bytes_of(std::span(built.dataset)), bytes_of(std::span(built.sample))};
  });
}

BlendedSamples::BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts, const std::vector<double>& weights,
                               int64_t size, const fs::path& cache)
    : BlendedSamples(std::move(parts)) {
  const std::vector<double> shares = normalized(weights);
  const std::string key =
      cat("size ", size, ", weights ", hash_hex(shares.data(), shares.size() * sizeof shares.front()));
  make_index(cache, key, [&] { return build_blending_indices(shares, size); });
  const std::vector<SourceUse> uses = use_of(size);
  for (size_t i = 0; i < parts_.size(); ++i)
    require<DataError>(uses[i].samples <= *parts_[i]->size(), uses[i].name, ": the blend takes ", uses[i].samples,
                       " of its ", *parts_[i]->size(), " samples: give it a smaller weight");
}

BlendedSamples::BlendedSamples(std::vector<std::shared_ptr<const GptSamples>> parts, const fs::path& cache)
    : BlendedSamples(std::move(parts)) {
  std::vector<int64_t> sizes;
  for (const auto& part : parts_) sizes.push_back(*part->size());
  const std::string key = cat("exhaustive, sizes ", hash_hex(sizes.data(), sizes.size() * sizeof sizes.front()));
  make_index(cache, key, [&] { return build_exhaustive_blending_indices(sizes); });
}

std::vector<SourceUse> BlendedSamples::use_of(int64_t samples) const {
  std::vector<int64_t> taken(parts_.size(), 0);
  size_t unseen = parts_.size();
  for (auto k = static_cast<size_t>(std::min(samples, *size())); k-- > 0 && unseen > 0;) {
    int64_t& count = taken[static_cast<size_t>(dataset_index()[k])];
    if (count > 0) continue;
    count = dataset_sample_index()[k] + 1;
    --unseen;
  }
  std::vector<SourceUse> uses;
  for (size_t i = 0; i < parts_.size(); ++i) uses.push_back(parts_[i]->use_of(taken[i]).front());
  return uses;
}

void BlendedSamples::read(int64_t index, std::span<int32_t> out) const {
  require_within(index, *size(), *this);
  const auto k = static_cast<size_t>(index);
  parts_[static_cast<size_t>(dataset_index()[k])]->read(dataset_sample_index()[k], out);
}

void BlendedSamples::prefetch(int64_t index) const {
  require_within(index, *size(), *this);
  const auto k = static_cast<size_t>(index);
  parts_[static_cast<size_t>(dataset_index()[k])]->prefetch(dataset_sample_index()[k]);
}

}  // namespace witan::megatron
