// One rank of a run on the meta device, where nothing is computed: allocator, kernels' costs and groups' accounting are
// the real ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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
class MetaRank {
 public:
  MetaRank(const ResolvedConfig& config, const Layout& layout, int rank);

  void step(int64_t micro_batches, int64_t iteration);
  // The step again, as it is made where a rank's experts get more rows than they have room for, in every number of
  // waves that it may take.
  void overflow(int64_t micro_batches, int64_t iteration);
  // What Engine::evaluate() runs over and over: micro-batches, of which it returns the number.
  int64_t evaluate();
  void log();  // the collectives of logging, which are not part of every step
  void sample(int64_t prompt_tokens);
  void gather_values() { engine_.gather_values(); }  // which are of a step, not of what reads them after it

  void reset_costs();
  const KernelCosts& costs() const { return stream_.costs(); }
  SentBytes sent() const;
  const CallCosts& calls() const { return calls_; }  // of the same time
  Arena& arena() { return stream_.arena(); }
  // What a checkpoint has of the rank: names of tensors, and bytes.
  std::map<std::string, int64_t> saved_tensors();
  std::string why_eager() const { return engine_.why_eager(); }

 private:
  const ResolvedConfig config_;
  CallCosts calls_;
  ThreadPool pool_;
  Stream stream_;
  const Groups groups_;
  Engine engine_;
};

}  // namespace witan
