#include "witan/train/step/features/pass_notes.h"

namespace witan {

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
