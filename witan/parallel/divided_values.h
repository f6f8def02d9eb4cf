// Values that ranks divide among them (FSDP: Zhao et al., 2023; ZeRO stage 3), gathered unit by unit while they are
// used.
//
// A unit is a block, or what lies before the blocks or behind them (plan_units). Of what it holds a rank keeps its own
// part alone, cut where its gradients are (ownership.h): of experts over expert_shard, of all else over shard and
// context. The whole of a unit is a buffer for each of the two and each dtype, where parameters begin at multiples of
// 512 bytes or right beside their neighbour. It is gathered when a block begins, or when a kernel first asks for a
// value of it, and given back by release(), and with reshard_after_forward
//   - after the forward of its block; the last of a chunk of layers when the next pass comes to another block, since a
//     backward begins with it,
//   - after the backward of its block; what is no block's when a pass goes on to the next block, or ends.
// In a pipeline that is for every micro-batch; without reshard_after_forward once for all of a step.
#pragma once

#include <memory>
#include <vector>

#include "witan/nn/module.h"
#include "witan/parallel/sharding/ownership.h"

namespace witan {

class DividedValues {
 public:
  struct Options {
    bool reshard_after_forward = true;
    uint64_t seed = 0;
    bool torch = false;                        // initial values are PyTorch's, which are drawn
    std::vector<const Parameter*> drawn = {};  // for all of these in turn: the stages' of a pipeline; none: the model's
    OwnershipPolicy policy = {};
  };
  // Gives the model's parameters, which have none, the values that they begin with, and listens to the model and its
  // blocks until it is destroyed. The model, whose path is empty, stream and groups must outlive it.
  DividedValues(Stream& stream, Module& model, const Groups& groups, const Options& options);
  ~DividedValues();
  DividedValues(const DividedValues&) = delete;
  DividedValues& operator=(const DividedValues&) = delete;

  // From now on units are gathered on this stream, which reduces gradients over the same groups, and with `prefetch`
  // the next one while this one computes. It must outlive the last use. Null: on the main stream, when they are used.
  void gather_on(Stream* beside, bool prefetch) {
    beside_ = beside;
    prefetches_ = beside && prefetch;
  }
  // Around forwards that no backward follows: begin_passes() before the first, end_pass() after each, release() after
  // the last. Every pass then begins with the same units: with none, or without reshard_after_forward with all.
  void begin_passes();
  void end_pass();
  // Gives back what is gathered: before values change, and where nothing reads them for a while.
  void release();

 private:
  // What one group gathers of a unit.
  struct Buffer {
    std::vector<size_t> parameters;  // indices in the model
    std::vector<int64_t> places;     // of each in the whole
    std::vector<int64_t> begins;     // [owners + 1]: elements of the whole
    Group* group;                    // null: every rank keeps the whole
    Tensor kept;                     // [elements of this owner]
    Tensor whole;                    // [begins.back()], while it is gathered
  };
  struct Unit {
    bool block = false;
    int chunk = 0;  // of layers
    std::vector<Buffer> buffers = {};
    bool gathered = false, bound = false;  // there; and known to the parameters
    bool under_way = false;                // on the other stream, and not waited for
  };

  void add_buffers(Unit& unit, const BucketPlan& plan, const Groups& groups) const;
  void begin_values(const Options& options);
  void keep(Buffer& buffer, size_t index, uint64_t seed, TorchRandom* torch);
  void listen(Module& model);
  void enter(size_t unit);
  void leave(size_t unit);
  void need(size_t unit);
  void prefetch(size_t unit, int chunk);
  void fetch(Unit& unit);
  void gather(Unit& unit, Stream& on) const;
  void bind(Unit& unit, bool whole);
  void release(Unit& unit);

  Stream& stream_;
  Stream* beside_ = nullptr;
  bool prefetches_ = false;
  bool reshard_after_forward_;
  std::vector<Parameter*> parameters_;
  std::vector<Unit> units_;  // in the model's order
  bool in_backward_ = false;
  std::vector<ModuleObserver> observers_;
};

}  // namespace witan
