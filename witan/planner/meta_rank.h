// One rank of a run on the meta device, where nothing is computed: allocator, kernels' costs and groups' accounting are
// the real ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/parallel/groups.h"
#include "witan/planner/memory_repetition.h"
#include "witan/train/step/engine.h"

namespace witan {

Layout layout_of(const RunConfig& config);
int64_t micro_batches_of_a_rank(const RunConfig& config);  // in a step
// Of the longest sample's prompt, with sft of the conversation that begins with it, before a tokenizer says how many it
// has: one for each byte, with room for a new one where positions are learned.
int64_t most_prompt_tokens(const RunConfig& config);
std::vector<Batch> batches_of(const RunConfig& config,
                              int64_t count);  // micro-batches, of which a meta device needs sizes
class MetaRank {
 public:
  // all: every micro-batch is run. some: those of steps and of a pipeline's evaluations that take what others took are
  // counted alone.
  enum class Run : uint8_t { all, some };
  MetaRank(const ResolvedConfig& config, const Layout& layout, int rank, Run run = Run::all);

  // The first step of a run whose global batch grows: what a step leaves behind lies beside its smaller buffers then.
  void begin_ramp();
  void step(int64_t micro_batches, int64_t iteration);
  // The step again, as it is made where a rank's experts get more rows than they have room for, in every number of
  // waves that it may take.
  void overflow(int64_t micro_batches, int64_t iteration);
  // What Engine::evaluate() runs over and over: micro-batches, of which it returns the number.
  int64_t evaluate();
  void log();  // the collectives of logging, which are not part of every step
  void sample(int64_t prompt_tokens);
  void gather_values() { engine_.gather_values(); }  // which are of a step, not of what reads them after it

  // Whether memory came to repeat wherever some were left out; if not, all must be run.
  bool repeats() const { return repetition_.found_all(); }

  // Micro-batches that were left out, of all steps and evaluations since reset_costs().
  int64_t micro_batches_left_out() const { return repetition_.micro_batches_left_out(); }

  void reset_costs();
  RankCosts costs() const { return repetition_.costs(); }  // since then
  Arena& arena() { return stream_.arena(); }
  // What a checkpoint has of the rank: names of tensors, and bytes.
  std::map<std::string, int64_t> saved_tensors();
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
