// The results of a step, gathered on the device while it runs and read by the host once, at its end.
#pragma once

#include <vector>

#include "witan/model/transformer.h"
#include "witan/moe/statistics.h"
#include "witan/parallel/layout.h"
#include "witan/parallel/stages.h"

namespace witan {

// Of a rank's values: those of its micro-batches, of the MoE blocks that its stage of a pipeline holds.
class ReportSizes {
 public:
  ReportSizes(const ModelConfig& model, const Stages& stages, int64_t micro_batches);

  int64_t micro_batches() const { return micro_batches_; }            // of each rank
  const StatisticsLayout& statistics() const { return statistics_; }  // of a block
  int64_t blocks() const { return blocks_; }                          // with experts, of the whole model, MTP's last
  int stages() const { return static_cast<int>(held_.size()); }
  // The blocks of a stage's chunk, numbered through the model.
  const std::vector<int64_t>& held(int stage, int chunk) const {
    return held_[static_cast<size_t>(stage)][static_cast<size_t>(chunk)];
  }
  std::vector<int64_t> held(int stage) const;  // of all its chunks, one after the other

  int64_t mtp_modules() const { return mtp_modules_; }

  // Of a micro-batch: its blocks' values, and the losses of the model and of its MTP modules. As many as the stage has
  // that has most.
  int64_t micro_batch_values() const { return most_held_ * statistics_.values() + 1 + mtp_modules_; }

 private:
  int64_t micro_batches_, mtp_modules_, blocks_ = 0, most_held_ = 0;
  StatisticsLayout statistics_;
  std::vector<std::vector<std::vector<int64_t>>> held_;  // by stage, chunk
};

class StepReport {
 public:
  // `rank` of the layout's world.
  StepReport(Stream& stream, const Layout& layout, int rank, ReportSizes sizes);

  const ReportSizes& sizes() const { return sizes_; }

  // In the step. Of a micro-batch's way through a chunk of layers: what the chunk found, and, of the last one, the
  // losses, [1] each, of the model and of its MTP modules. Of the step: the gradients' total [2] and the step's values;
  // `stop` was written before.
  void add(Stream& stream, int64_t micro_batch, int chunk, const ModelOutput& out,
           const std::vector<Tensor>& losses) const;
  void finish(Stream& stream, Group& world, const Tensor& total, const Tensor& step) const;
  void write_stop(Stream& stream, bool stop) const;

  // The losses of this rank's micro-batches, [1] each, once they are added; none in a stage that computes no loss.
  std::vector<Tensor> own_losses() const;

  struct Result {
    // Of each micro-batch, in the order of the global batch.
    std::vector<double> losses;
    std::vector<std::vector<double>> mtp_losses;               // likewise, of each MTP module
    std::vector<std::vector<std::vector<double>>> statistics;  // [micro-batches][MoE blocks]: packed
    double square_sum = 0, zeros = 0;                          // of the gradients
    std::vector<double> step;                                  // kernels::step_value
    bool stop = false;                                         // on any rank
  };
  // Waits for the step. Zeros on the meta device.
  Result read(Stream& stream) const;

 private:
  int64_t values() const;
  void read_micro_batch(const double* values, int rank, size_t which, Result& result) const;

  Layout layout_;
  int stage_;
  ReportSizes sizes_;
  Tensor all_, own_;  // [ranks * values()] float64, and this rank's part
  Tensor stop_;       // [1] float64
};

}  // namespace witan
