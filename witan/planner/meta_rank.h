// One rank of a run on the meta device, where nothing is computed: allocator, kernels' costs and groups' accounting are
// the real ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "witan/base/threads.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/call_record.h"
#include "witan/train/step/engine.h"

namespace witan {

// By part of the model, then kernel; by axis, then operation: bytes.
using KernelCosts = std::map<std::string, std::map<std::string, Cost>>;
using SentBytes = std::map<std::string, std::map<std::string, double>>;
inline Cost scaled(const Cost& cost, double times) {
  return {times * cost.flops, times * cost.bytes, times * cost.seconds, times * cost.calls};
}

Layout layout_of(const RunConfig& config);
int64_t micro_batches_of_a_rank(const RunConfig& config);  // in a step
// Of the sample's prompt, before a tokenizer says how many it has: one for each byte, with room for a new one where
// positions are learned.
int64_t most_prompt_tokens(const RunConfig& config);
std::vector<Batch> batches_of(const RunConfig& config,
                              int64_t count);  // micro-batches, of which a meta device needs sizes
// How many of them a plan may leave out of a stage's, as they take what those before them took: where the stage holds
// one at a time, the last of a pipeline or all of the model. None where gradients are summed in trees, which grow with
// the micro-batches.
int64_t micro_batches_to_leave_out(const RunConfig& config, int stage);

class MetaRank {
 public:
  // `left_out` micro-batches of steps and of a pipeline's evaluations are not run, but their costs are counted.
  MetaRank(const ResolvedConfig& config, const Layout& layout, int rank, int64_t left_out = 0);

  void step(int64_t micro_batches, int64_t iteration);
  // The step again, as it is made where a rank's experts get more rows than they have room for, in every number of
  // waves that it may take.
  void overflow(int64_t micro_batches, int64_t iteration);
  // What Engine::evaluate() runs over and over: micro-batches, of which it returns the number.
  int64_t evaluate();
  void log();  // the collectives of logging, which are not part of every step
  void sample(int64_t prompt_tokens);
  void gather_values() { engine_.gather_values(); }  // which are of a step, not of what reads them after it

  // Whether memory was, before what was left out, as it had been some micro-batches earlier, block for block: only then
  // would what was left out have taken what was run since.
  bool repeats() const { return repeats_; }

  void reset_costs();
  KernelCosts costs() const;
  SentBytes sent() const;
  CallCosts calls() const;  // of the same time
  Arena& arena() { return stream_.arena(); }
  // What a checkpoint has of the rank: names of tensors, and bytes.
  std::map<std::string, int64_t> saved_tensors();
  std::string why_eager() const { return engine_.why_eager(); }

 private:
  // A live block of memory, and what it is there for: micro-batches are counted from the one that has just passed.
  using Block = std::tuple<int64_t, int64_t, MemoryTag, TraceContext::Phase, int64_t, std::string, std::string>;
  struct Taken {
    std::vector<Block> memory;
    KernelCosts costs;
    SentBytes sent;
    CallCosts calls;
  };
  Taken taken_until(int64_t micro_batch);
  void passed(int64_t micro_batch);

  const ResolvedConfig config_;
  LeftOut left_out_;
  std::vector<Taken> marks_;  // of this step, so far
  Taken not_run_;             // its costs
  bool repeats_ = true;
  CallCosts calls_;
  ThreadPool pool_;
  Stream stream_;
  const Groups groups_;
  Engine engine_;
};

}  // namespace witan
