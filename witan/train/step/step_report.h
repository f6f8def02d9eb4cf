// The results of a step, gathered on the device while it runs and read by the host once, at its end.
#pragma once

#include <array>
#include <vector>

#include "witan/model/activation_statistics.h"
#include "witan/model/transformer.h"
#include "witan/moe/statistics.h"
#include "witan/parallel/layout.h"
#include "witan/parallel/stages.h"
#include "witan/train/config/config.h"
#include "witan/train/state/run_end.h"

namespace witan {

// The losses of a step that are reported by their names: all but those of routers, which are statistics.
struct ReportedLosses {
  std::vector<LossSpec> objective = {};  // recorded after the head
  std::vector<LossSpec> modules = {};    // recorded by modules of any stage

  size_t size() const { return objective.size() + modules.size(); }
  const LossSpec& operator[](size_t i) const {
    return i < objective.size() ? objective[i] : modules[i - objective.size()];
  }
};

// Adds the losses that the modules of a model, or of a stage of it, record: each name once.
void add_losses(std::vector<LossSpec>& losses, Transformer& model);

// The number and the places of a rank's values: of its micro-batches, and of the MoE blocks and layers of its pipeline
// stage.
class ReportSizes {
 public:
  enum class Activations : uint8_t {
    none,
    same,    // tensor-parallel ranks all measure the same
    shared,  // each measures its tokens (sequence_parallel)
  };
  static Activations activations_of(const RunConfig& config);

  // Throws Error where two losses have one name, or one has that of another figure of a step.
  ReportSizes(const ModelConfig& model, const Stages& stages, int64_t micro_batches, ReportedLosses losses = {},
              Activations activations = Activations::none);

  int64_t micro_batches() const { return micro_batches_; }            // of each rank
  int64_t chunks() const { return chunks_; }                          // of each stage
  const StatisticsLayout& statistics() const { return statistics_; }  // of a block
  int64_t blocks() const { return blocks_; }                          // with experts, of the whole model, MTP's last
  int stages() const { return static_cast<int>(held_.size()); }
  // The blocks of a stage's chunk, numbered through the model.
  const std::vector<int64_t>& held(int stage, int chunk) const {
    return held_[static_cast<size_t>(stage)][static_cast<size_t>(chunk)];
  }
  std::vector<int64_t> held(int stage) const;  // of all its chunks, one after the other

  const ReportedLosses& losses() const { return losses_; }

  Activations activations() const { return activations_; }
  int64_t layers() const { return layers_; }  // of the whole model, MTP's last
  // The layers that a stage holds.
  const std::vector<int64_t>& held_layers(int stage) const { return held_layers_[static_cast<size_t>(stage)]; }

  // The values of a micro-batch: those of blocks and the objective's losses; from module_losses_begin() on the losses
  // of each chunk's modules; from activations_begin() on the moments of activations. Their number is the same on all
  // stages: that of the stage with most.
  int64_t micro_batch_values() const {
    return activations_begin() + (activations_ == Activations::none ? 0 : most_layers_ * values_of_layer());
  }
  int64_t module_losses_begin() const {
    return most_held_ * statistics_.values() + static_cast<int64_t>(losses_.objective.size());
  }
  int64_t activations_begin() const {
    return module_losses_begin() + chunks_ * static_cast<int64_t>(losses_.modules.size());
  }
  static int64_t values_of_layer();  // the moments of its activations

 private:
  int64_t micro_batches_, chunks_, blocks_ = 0, most_held_ = 0;
  ReportedLosses losses_;
  StatisticsLayout statistics_;
  std::vector<std::vector<std::vector<int64_t>>> held_;  // by stage, chunk
  Activations activations_;
  int64_t layers_, most_layers_ = 0;
  std::vector<std::vector<int64_t>> held_layers_;  // by stage
};

class StepReport {
 public:
  // `rank` of the layout's world.
  StepReport(Stream& stream, const Layout& layout, int rank, ReportSizes sizes);

  const ReportSizes& sizes() const { return sizes_; }

  // Called in the step. add(): after a micro-batch's forward through a chunk, with router statistics and the losses
  // that were recorded; throws Error for an undeclared loss. finish(): with the gradients' total [2] and the step's
  // values. write_end(): before finish(), with the reason to end the run.
  void add(Stream& stream, int64_t micro_batch, int chunk, const ModelOutput& out,
           const std::vector<LossRecord>& losses) const;
  void finish(Stream& stream, Group& world, const Tensor& total, const Tensor& step) const;
  void write_end(Stream& stream, RunEnd asked) const;

  // The place for the moments [kActivationMoments] of an activation of a micro-batch, in a layer of this stage.
  Tensor moments(int64_t micro_batch, int64_t layer, Activation of) const;

  // The objective's first loss of each of this rank's micro-batches, [1], once they are added; none in a stage that
  // does not compute it.
  std::vector<Tensor> own_losses() const;

  using LayerMoments = std::array<ActivationMoments, kActivations>;
  struct Result {
    std::vector<double> losses;  // the objective's, then those of modules
    std::vector<std::vector<std::vector<double>>>
        statistics;                    // [micro-batches of the global batch][MoE blocks]: packed
    double square_sum = 0, zeros = 0;  // of the gradients
    std::vector<double> step;          // kernels::step_value
    RunEnd end = RunEnd::none;         // the latest in the order of its values that a rank asks for
    std::vector<double> values;        // of all ranks, as they were gathered
  };
  // Waits for the step. On the meta device all values are 0 and statistics are empty: a plan would spend most of its
  // time on millions of micro-batches.
  Result read(Stream& stream) const;
  // The moments of each layer's activations over all micro-batches, of a step that measured them. Empty on the meta
  // device.
  std::vector<LayerMoments> activations(const Result& result) const;

 private:
  int64_t values() const;
  void check_declared(const LossRecord& loss) const;
  void add_module_losses(Stream& stream, int64_t micro_batch, int chunk, const std::vector<LossRecord>& losses) const;
  // losses [declared][micro-batches of the global batch]
  using Losses = std::vector<std::vector<double>>;
  void read_micro_batch(const double* values, int rank, size_t which, Result& result, Losses& losses) const;

  Layout layout_;
  int stage_;
  ReportSizes sizes_;
  Tensor all_, own_;  // [ranks * values()] float64, and this rank's part
  Tensor end_;        // [1] float64: a RunEnd
};

}  // namespace witan
