// What a step comes to, gathered on the device while it runs and read by the host once, when it is over.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/model/transformer.h"

namespace witan {

struct ReportSizes {
  int64_t micro_batches = 0;  // of each rank
  int64_t blocks = 0;         // with experts
  int64_t experts = 0;
};
ReportSizes report_sizes(const ModelConfig& model, int64_t micro_batches);

class StepReport {
 public:
  // `telling`: those of the ranks whose micro-batches count.
  StepReport(Stream& stream, const Group& ranks, std::vector<int> telling, const ReportSizes& sizes);

  const ReportSizes& sizes() const { return sizes_; }

  // In the step. Of a micro-batch: its loss [1], and the model's own. Of the step: the gradients' total [2] and the
  // step's values; `stop` was written before.
  void add(Stream& stream, int64_t micro_batch, const Tensor& loss, const ModelOutput& out) const;
  void finish(Stream& stream, Group& ranks, const Tensor& total, const Tensor& step) const;
  void write_stop(Stream& stream, bool stop) const;

  struct MicroBatch {
    double loss = 0, balance = 0, z = 0;              // summed over blocks
    std::vector<std::vector<int64_t>> expert_counts;  // [blocks][E]
  };
  struct Result {
    std::vector<MicroBatch> micro_batches;  // of the telling ranks, in the order of the global batch
    double square_sum = 0, zeros = 0;       // of the gradients
    std::vector<double> step;               // kernels::step_value
    bool stop = false;                      // on any rank
  };
  // Waits for the step. Zeros on the meta device.
  Result read(Stream& stream) const;

 private:
  int64_t micro_batch_values() const { return 1 + 2 * sizes_.blocks + sizes_.blocks * sizes_.experts; }
  int64_t values() const;
  MicroBatch micro_batch(const double* values) const;

  ReportSizes sizes_;
  int ranks_, rank_;
  std::vector<int> telling_;
  Tensor all_, own_;  // [ranks * values()] float64, and this rank's part
  Tensor stop_;       // [1] float64
};

}  // namespace witan
