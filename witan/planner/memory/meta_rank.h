// One rank of a run on the meta device: nothing is computed, but the allocator, the kernels' costs and the groups'
// accounting are the real ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/parallel/groups.h"
#include "witan/planner/memory/memory_repetition.h"
#include "witan/train/step/engine.h"

namespace witan {

Layout layout_of(const RunConfig& config);
int64_t micro_batches_of_a_rank(const RunConfig& config);  // per step
// The most tokens that the longest sample prompt may have before a tokenizer exists: one per byte, and at most one
// fewer than the learned positions. With sft the prompt is that of the conversation.
int64_t most_prompt_tokens(const RunConfig& config);
std::vector<Batch> batches_of(const RunConfig& config,
                              int64_t count);  // micro-batches without data, as the meta device needs only their sizes
class MetaRank {
 public:
  // all: runs every micro-batch. some: micro-batches of steps, and of a pipeline's evaluations, that repeat what others
  // did are counted but not run.
  enum class Run : uint8_t { all, some };
  MetaRank(const ResolvedConfig& config, const Layout& layout, int rank, Run run = Run::all);

  // The first step of a run with a batch size ramp: its remaining blocks lie beside its smaller buffers.
  void begin_ramp();
  void step(int64_t micro_batches, int64_t iteration);
  // Repeats the step as a run does when an expert's tokens overflow its receive buffer, once for each number of passes
  // that it may take.
  void overflow(int64_t micro_batches, int64_t iteration);
  // Runs one unit of Engine::evaluate() and returns its number of micro-batches.
  int64_t evaluate();
  void log();  // the collectives of logging, which not every step makes
  void sample(int64_t prompt_tokens);
  void rollouts();                                   // the largest steps of sampling, if the run samples its batches
  void gather_values() { engine_.gather_values(); }  // counted as part of the step, not of the reader that triggers it

  // Whether memory repeated wherever micro-batches were skipped; if not, all must be run.
  bool repeats() const { return repetition_.found_all(); }

  // Micro-batches skipped in all steps and evaluations since reset_costs().
  int64_t micro_batches_left_out() const { return repetition_.micro_batches_left_out(); }

  void reset_costs();
  RankCosts costs() const { return repetition_.costs(); }  // since reset_costs()
  Arena& arena() { return stream_.arena(); }
  // A tensor that the rank contributes to a checkpoint.
  struct SavedTensor {
    StateTensor::Kind kind;
    int64_t bytes = 0;  // that the rank writes
  };
  std::map<std::string, SavedTensor> saved_tensors();      // by name
  std::map<std::string, SavedTensor> reference_tensors();  // of a frozen reference, if it has weights of its own
  int64_t reference_bytes();                               // of this rank's weights of that reference
  ReportSizes report_sizes(int64_t micro_batches) const { return engine_.report_sizes(micro_batches); }
  std::string why_eager() const { return engine_.why_eager(); }

 private:
  const ResolvedConfig config_;
  CallCosts calls_;
  ThreadPool pool_;
  Stream stream_;
  const Groups groups_;
  MemoryRepetition repetition_;
  Engine engine_;
};

}  // namespace witan
