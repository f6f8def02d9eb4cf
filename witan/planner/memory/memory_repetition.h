// Detects when the memory layout of a rank on the meta device repeats, block for block, and extrapolates the costs of
// the micro-batches that are skipped from then on.
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

// Costs by part of the model, then kernel; bytes by axis, then operation.
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
  // All arguments must outlive this. `calls`: the stream's call record.
  MemoryRepetition(Stream& stream, const Groups& groups, const CallCosts& calls)
      : stream_(stream), groups_(groups), calls_(calls) {}

  void begin() override;
  int64_t period(int64_t micro_batch) override;
  void leave_out(int64_t micro_batches, int64_t period) override;

  // Whether every walk so far repeated. If not, costs and memory are not those of the whole pipeline.
  bool found_all() const { return found_all_; }

  void reset_left_out() {
    left_out_ = {};
    micro_batches_left_out_ = 0;
  }
  int64_t micro_batches_left_out() const { return micro_batches_left_out_; }  // since reset_left_out()
  RankCosts costs() const;  // of what ran, plus what was skipped since the reset

 private:
  struct Mark {
    int64_t micro_batch = 0;
    std::string memory = {};  // hash of the memory layout
  };
  RankCosts costs_of_what_ran() const;

  Stream& stream_;
  const Groups& groups_;
  const CallCosts& calls_;
  int64_t before_ = 0;                    // memory records that precede the walk
  std::vector<Mark> marks_;               // of this walk
  std::map<std::string, size_t> latest_;  // the last mark with each memory layout
  size_t apart_ = 0;                      // length of the candidate period in marks; 0: none
  size_t agreed_ = 0;                     // marks since then that confirmed it
  RankCosts costs_;                       // costs at its start; once confirmed, those of one whole period
  RankCosts left_out_;
  int64_t micro_batches_left_out_ = 0;
  bool found_all_ = true;
};

}  // namespace witan
