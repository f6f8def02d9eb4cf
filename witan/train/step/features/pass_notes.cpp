#include "witan/train/step/features/pass_notes.h"

#include <iterator>

#include "witan/base/hash.h"
#include "witan/tensor/host.h"

namespace witan {
namespace {

void add_bytes(Hasher& hasher, const Tensor& tensor) {
  for_host_bytes(tensor,
                 [&](const std::byte* bytes, int64_t count) { hasher.update(bytes, static_cast<size_t>(count)); });
}

// Skips gradients that were not written yet, whose memory holds anything.
uint64_t gradient_hash(Parameter& parameter, const GradBucket& bucket) {
  Hasher hasher;
  if (parameter.gradient_written)
    for (int64_t part = 0; part < parameter.gradient_parts(); ++part) add_bytes(hasher, parameter.gradient_part(part));
  if (bucket.head_apart)
    if (Leaf& head = parameter.as_head(); head.gradient_written) add_bytes(hasher, head.gradient());
  return hasher.low64();
}

}  // namespace

PassDigest::PassDigest(const std::vector<Parameter*>& parameters) {
  for (const Parameter* parameter : parameters) places_[parameter] = std::ssize(parameters) - std::ssize(places_);
}

void PassDigest::add_loss(int64_t micro_batch, const Tensor& loss) {
  Hasher hasher;
  add_bytes(hasher, loss);
  entries_[{micro_batch, 0}] = {micro_batch, "loss", hasher.low64()};
}

void PassDigest::add_gradients(const GradBucket& bucket) {
  for (Parameter* parameter : bucket.parameters)
    entries_[{bucket.micro_batch, places_.at(parameter)}] = {bucket.micro_batch, parameter->name(),
                                                             gradient_hash(*parameter, bucket)};
}

std::vector<PassDigest::Entry> PassDigest::entries() const {
  std::vector<Entry> all;
  for (const auto& [place, entry] : entries_) all.push_back(entry);
  return all;
}

uint64_t PassDigest::hash() const {
  Hasher hasher;
  for (const auto& [place, entry] : entries_) {
    hasher.update(&entry.micro_batch, sizeof entry.micro_batch);
    hasher.update(entry.what.data(), entry.what.size() + 1);
    hasher.update(&entry.hash, sizeof entry.hash);
  }
  return hasher.low64();
}

void PassNotes::note(PassDigest* digest) {
  digest_ = digest;
  if (digest == nullptr) return gradients_.observe({});
  digest->clear();
  gradients_.observe([this](const GradBucket& bucket) {
    stream_.wait();
    digest_->add_gradients(bucket);
  });
}

void PassNotes::after_passes() {
  if (digest_ == nullptr) return;
  stream_.wait();
  int64_t micro_batch = 0;
  for (const Tensor& loss : report_->own_losses()) digest_->add_loss(micro_batch++, loss);
}

}  // namespace witan
