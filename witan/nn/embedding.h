// Token embedding, and the output head that may share its weight.
#pragma once

#include "witan/nn/module.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {

// Ranks of the tensor axis hold n of the V entries each, as evenly as whole entries can be divided, or each of them the
// same number of channels of every entry.
class Embedding : public Module {
 public:
  enum class Divided : uint8_t { entries, channels };

  // weight [V, D], V = size + padding: entries that stand for nothing follow those that ids name
  // (ops/vocabulary/vocabulary.h), and begin, and stay, at 0.
  Embedding(const Builder& builder, int64_t size, int64_t width, int64_t padding = 0,
            Divided divided = Divided::entries);

  // Where the rows go: into the model, or behind its layers, as what logits() gives does. The gradient of what comes
  // behind is that of the tied copy, which the last stage of a pipeline holds.
  enum class Place : uint8_t { before_layers, behind_layers };

  // ids int32 [..] -> [.., D]: 0 where another rank has the entry, so that ranks have summands; divided by channels
  // [.., D/n]: this rank's
  Var forward(Tape& tape, const Tensor& ids, Place place = Place::before_layers);
  // With the same weight (tied head), divided by entries: x [.., D] as to_sharded_layer() gives it -> [.., n]
  Var logits(Tape& tape, const Var& x);

  std::string_view cost_part() const override { return "embedding"; }

 private:
  ops::VocabularyPart part_;
  Parameter& weight_;
};

}  // namespace witan
