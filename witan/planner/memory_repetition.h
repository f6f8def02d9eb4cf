// Finds when the memory of a rank on the meta device comes to be as it was, block for block, and counts the costs of
// the micro-batches that are left out from then on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "witan/parallel/groups.h"
#include "witan/parallel/pipeline_walk.h"
#include "witan/tensor/device.h"
#include "witan/tensor/trace_context.h"

namespace witan {

// By part of the model, then kernel; by axis, then operation: bytes.
using KernelCosts = std::map<std::string, std::map<std::string, Cost>>;
using SentBytes = std::map<std::string, std::map<std::string, double>>;
inline Cost scaled(const Cost& cost, double times) {
  return {times * cost.flops, times * cost.bytes, times * cost.seconds, times * cost.calls};
}

struct RankCosts {
  KernelCosts kernels;
  SentBytes sent;
  CallCosts calls;

  void add(const RankCosts& other, double times);
};

class MemoryRepetition : public Repetition {
 public:
  // All must outlive it. `calls`: what the stream records.
  MemoryRepetition(Stream& stream, const Groups& groups, const CallCosts& calls)
      : stream_(stream), groups_(groups), calls_(calls) {}

  void begin() override;
  int64_t period(int64_t micro_batch) override;
  void leave_out(int64_t micro_batches, int64_t period) override;

  // Whether it found a period in every walk so far. Where it did not, costs and memory are not those of the pipeline.
  bool found_all() const { return found_all_; }

  void reset_left_out() {
    left_out_ = {};
    micro_batches_left_out_ = 0;
  }
  int64_t micro_batches_left_out() const { return micro_batches_left_out_; }  // since then
  RankCosts costs() const;  // of what ran and, since the reset, was left out

 private:
  struct Mark {
    int64_t micro_batch = 0;
    std::string memory = {};  // a hash
  };
  RankCosts costs_of_what_ran() const;

  Stream& stream_;
  const Groups& groups_;
  const CallCosts& calls_;
  int64_t before_ = 0;                    // records of memory before the walk
  std::vector<Mark> marks_;               // of the walk, so far
  std::map<std::string, size_t> latest_;  // by memory: the last mark that had it
  size_t apart_ = 0;                      // marks of a period, if it is one; 0: memory is not as it was
  size_t agreed_ = 0;                     // marks since then that had the memory of the mark so far before them
  RankCosts costs_;                       // until then; of a whole period, once it is over
  RankCosts left_out_;
  int64_t micro_batches_left_out_ = 0;
  bool found_all_ = true;
};

}  // namespace witan
