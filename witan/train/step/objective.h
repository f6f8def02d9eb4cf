// The objective that a step minimises, besides the losses that modules of the model record themselves.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/train/config/config.h"
#include "witan/train/step/step_inputs.h"

namespace witan {

// A micro-batch whose forward has computed the logits.
struct ObjectivePass {
  Tape& tape;
  Transformer& model;
  const StepInputs& inputs;
  int64_t micro_batch;
  bool scaled_losses;        // the gradients of losses are multiplied by a loss scale
  Group* context = nullptr;  // ranks that divide rows; null: none do
  // [T] in the accumulator dtype: log probabilities of the targets under the frozen reference (step/reference.h);
  // undefined: the run has none.
  Tensor reference = {};
};

// Turns the logits of the last stage and the batch's columns into losses. Every rank of a micro-batch calls it in the
// same order. Between its inputs and its losses nothing waits for the host: a step may be recorded.
class Objective {
 public:
  virtual ~Objective() = default;

  // The columns that batches must have besides tokens and targets.
  virtual std::vector<ColumnSpec> columns() const { return {}; }
  // Whether it reads StepInputs::sequence_count().
  virtual bool counts_sequences() const { return false; }
  // The losses that record() records, at least one. The first is reported as the step's loss (StepResult::loss).
  virtual std::vector<LossSpec> losses() const = 0;
  // Records losses (Tape::add_loss) of out.logits and out.ahead, and moves these out: logits are a step's largest
  // tensors, and only the backward should hold them.
  virtual void record(const ObjectivePass& pass, ModelOutput& out) const = 0;

  // The names of what evaluate() finds; empty: an evaluation is of the cross entropy of targets.
  virtual std::vector<std::string> evaluated() const { return {}; }
  // Of a forward without a backward: sums [1] each over the micro-batch's pairs of documents, or this rank's share of
  // them, of the loss and then of what evaluated() names.
  virtual std::vector<Tensor> evaluate(const ObjectivePass& /*pass*/, ModelOutput& /*out*/) const { return {}; }
};

// The objective that the configuration asks for (ObjectiveConfig::objective).
std::unique_ptr<Objective> make_objective(const RunConfig& config);

// A micro-batch with sizes and the columns that the objective reads, without values, for steps on the meta device.
Batch sized_batch(const RunConfig& config);

// Names of the losses that cross entropy records: the model's, and that of the module-th module of multi-token
// prediction, counted from 1. Both are means over the targets of the global batch, in nats.
inline constexpr const char* kLanguageLoss = "lm loss";
std::string mtp_loss_name(int64_t module);
bool is_mtp_loss(std::string_view name);

// The weight of each of the micro-batch's targets in a mean over the global batch's, [T] in the accumulator dtype: its
// mask over the number of targets. `ahead`: the module of multi-token prediction, from 1, or 0 for the model itself.
Tensor target_weights(const ObjectivePass& pass, int64_t ahead = 0);

}  // namespace witan
