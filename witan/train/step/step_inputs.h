// The micro-batches of a step on the device. Their buffers keep their addresses from step to step, so that a
// captured step finds the next batch where it found the last.
#pragma once

#include <string_view>
#include <vector>

#include "witan/comm/group.h"
#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"

namespace witan {

// The part of the batches [B, S] that a context-parallel rank trains on: of each the places [B, S / n] at
// context_positions() of this rank of the group. Throws ConfigError unless 2 n divides S.
std::vector<Batch> context_part(const std::vector<Batch>& batches, const Group& context);

class StepInputs {
 public:
  // Allocates buffers for batches of these sizes and columns, and for the shifted batches of MTP modules.
  // `counts_sequences`: the documents with targets are counted too.
  StepInputs(Stream& stream, const std::vector<Batch>& batches, int64_t mtp_modules = 0, bool counts_sequences = false);

  // Whether these batches fit the buffers.
  bool fits(const std::vector<Batch>& batches) const;
  // On the meta device batches need only their sizes. `ahead`: the shifted batches of each MTP module
  // (data/batches/batch.h).
  void upload(Stream& stream, const std::vector<Batch>& batches, const std::vector<std::vector<Batch>>& ahead = {});

  int64_t micro_batches() const { return static_cast<int64_t>(places_.front().size()); }
  int64_t mtp_modules() const { return static_cast<int64_t>(places_.size()) - 1; }
  ModelInput input(int64_t micro_batch) const;  // tokens, positions and sequence ids [B, S], also of MTP modules
  // Targets [B S] int32 and their mask [B S] float32, of the model (`ahead` = 0) or of an MTP module, from 1.
  const Tensor& targets(int64_t micro_batch, int64_t ahead = 0) const { return place(micro_batch, ahead).targets; }
  const Tensor& mask(int64_t micro_batch, int64_t ahead = 0) const { return place(micro_batch, ahead).mask; }
  // The batches' column of this name, float32: [B S] per token, shifted like the targets, or [B] per sample. Throws
  // Error if there is none.
  const Tensor& column(int64_t micro_batch, std::string_view name, int64_t ahead = 0) const;
  // [1] float64: the targets that count in this rank's batches or, once reduced, in all.
  Tensor target_count(int64_t ahead = 0) const { return counts_.narrow(0, ahead, 1); }
  // [1] float64: the documents that have such targets, likewise; only with counts_sequences.
  Tensor sequence_count() const { return counts_.narrow(0, counts_.elements() - 1, 1); }
  const Tensor& counts() const { return counts_; }  // all of them

 private:
  struct Place {
    Tensor tokens, positions, targets, mask;
    std::vector<Tensor> columns;  // in the order of columns_; per sample those of the model's place
  };
  const Place& place(int64_t micro_batch, int64_t ahead) const {
    return places_[static_cast<size_t>(ahead)][static_cast<size_t>(micro_batch)];
  }
  void upload(Stream& stream, const std::vector<Batch>& batches, std::vector<Place>& places);

  std::vector<std::vector<Place>> places_;  // of the model and of each MTP module; by micro-batch
  std::vector<Tensor> sequence_ids_;
  std::vector<ColumnSpec> columns_;
  bool counts_sequences_;
  Tensor counts_;  // [1 + MTP modules] targets, then documents
};

}  // namespace witan
