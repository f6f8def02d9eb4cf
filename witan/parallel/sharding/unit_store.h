// Gathers the values of a model's units (model/unit.h), which data-parallel ranks shard, while guards hold them; and
// decodes frozen matrices that are kept as codes (kernels/quantised/quantised.h), sharded or not.
//
// There are two strategies. If parameters are sharded (ZeRO stage 3, FSDP: Zhao et al., 2023), a rank holds only its
// shard of each unit, split where its gradients are (shard_plan.h): experts over expert_shard, all other parameters
// over shard and context. A gathered unit is one tensor for each of these two families and each dtype, in which
// parameters start at multiples of 512 bytes or, if kernels use them as one matrix, right behind their neighbour. It
// stays gathered from acquire() until it is resharded. With reshard_after_forward that is
//   - after the forward of its block; for the last block of a chunk of layers only when the next pass reaches another
//     block, since a backward starts with it,
//   - after the backward of its block; for units outside blocks when a pass proceeds to the next block, or ends.
// In a pipeline that happens for every micro-batch; without reshard_after_forward units are gathered once per step.
//
// If only the optimizer is sharded, or the optimizer and gradients (ZeRO stages 1 and 2: Rajbhandari et al., 2020),
// every rank holds all of every unit, and after publish() its copies of other ranks' shards are out of date. Units are
// gathered in the model's order, each when it is first acquired: in the next step's forward, or by an earlier reader
// such as a checkpoint.
//
// Codes are gathered as they are and then decoded, into a whole that is given back like one that was gathered. In a
// layout that does not shard values, a rank has the codes of all its matrices, and decodes them without communication.
//
// On a GPU units are gathered on a side stream, the next one while the current one computes. All ranks that share units
// must make the same calls in the same order.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "witan/model/transformer.h"
#include "witan/model/unit.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {

class UnitStore final : public UnitAccess {
 public:
  struct Options {
    bool reshard_after_forward = true;
    uint64_t seed = 0;
    bool torch = false;  // draw PyTorch's initial values
    std::vector<const Parameter*> drawn =
        {};  // draw for all of these in turn, as for a whole pipeline; empty: for the units' own
    ShardingPolicy policy = {};
  };
  // Takes the units of the parameters in `shard_plan`, in its order. If parameters are sharded, it also creates their
  // initial values. Until it is destroyed, values may only be read under guards. Stream, parameters and groups must
  // outlive it.
  UnitStore(Stream& stream, const std::vector<Unit>& units, const ShardPlan& shard_plan, const Groups& groups,
            const Options& options);
  ~UnitStore() override;

  // Gathers units on this stream from now on, which also reduces gradients over the same groups. With `prefetch` the
  // next unit is gathered while the current one computes. The stream must outlive the last use. nullptr: units are
  // gathered on the main stream when they are used.
  void gather_on(Stream* side, bool prefetch);

  void begin_forward() override { in_backward_ = false; }
  void begin_backward() override { in_backward_ = true; }
  void end_backward() override;
  void acquire(int unit, Use use) override;
  void release(int unit, Use use) override;

  // These enclose forwards without a backward: begin_passes() before the first, end_pass() after each, give_back()
  // after the last. So every pass starts with the same units gathered: none, or all without reshard_after_forward.
  void begin_passes();
  void end_pass();
  // Reshards gathered parameters: before values change, and when they are not read for a while.
  void give_back();

  // Called after every rank has updated its own shards: the rank's copies of other ranks' shards are out of date.
  void publish();
  // Gathers everything published that has not arrived yet, of all units; does nothing for sharded parameters.
  void gather();
  bool gathered() const { return arrived_ == published_.size(); }

 private:
  // Parameters of a unit that one group gathers, or that are decoded: of one dtype and one format.
  struct Whole {
    std::vector<size_t> parameters;  // indices in the model
    std::vector<int64_t> places;     // offset of each in the whole
    std::vector<int64_t> begins;     // [ranks + 1]: offsets of the ranks' shards in the whole
    Group* group;                    // nullptr: every rank holds the whole
    DType dtype;
    Tensor shard;          // [elements of this rank]; undefined: it is kept as codes
    kernels::Codes codes;  // of the elements of this rank
    Tensor whole;          // [begins.back()] while gathered
    // The codes of all ranks, until the stream that decodes them has been waited for.
    kernels::Codes gathered_codes;

    bool made_on_demand() const { return group != nullptr || codes.defined(); }
  };
  // The part of a unit that one group gathers if only the update is sharded.
  struct Pieces {
    Group* group;
    std::vector<OwnedTensor> pieces;
  };
  struct Entry {
    UnitState state;
    bool block = false;
    int number = 0, chunk = 0;
    std::vector<Whole> wholes = {};
    std::vector<Pieces> pieces = {};       // of experts, and of all other parameters
    bool gathered = false, bound = false;  // gathered: the values are there; bound: the parameters use them
    bool under_way = false;                // being gathered on the side stream, not yet waited for
  };

  bool sharded() const { return groups_.layout().shards_values(); }
  bool makes_wholes() const { return sharded() || decodes_; }
  Entry& entry_of(int unit);
  // For sharded and coded parameters:
  void add_wholes(Entry& entry, const BucketPlan& plan) const;
  void begin_values(const Options& options);
  void gather(Whole& one, Stream& on) const;
  void init_shard(Whole& whole, size_t index, uint64_t seed, TorchRandom* torch) const;
  void enter(size_t unit);
  void leave(size_t unit);
  void need(size_t unit);
  void prefetch(size_t unit, int chunk);
  void fetch(Entry& entry);
  void gather(Entry& entry, Stream& on) const;
  void bind(Entry& entry, bool whole) const;
  void give_back(Entry& entry);
  // For a sharded update:
  void add_pieces(Entry& entry, size_t first_parameter, size_t parameters, const ShardPlan& shard_plan) const;
  void catch_up(const Entry& entry);
  void fetch_published();

  Stream& stream_;
  const Groups& groups_;
  Stream* side_ = nullptr;
  bool prefetches_ = false;
  bool reshard_after_forward_;
  bool decodes_;  // some parameters are kept as codes
  std::vector<Parameter*> parameters_;
  std::vector<Entry> entries_;  // in the model's order
  bool in_backward_ = false;
  std::vector<const Entry*> published_;  // entries that publish() makes out of date, in the model's order
  size_t fetched_ = 0, arrived_ = 0;  // how many of them are being gathered or have arrived, and how many have arrived
};

// The units of a model that one rank has whole, of which some matrices are kept as codes; of other models nothing,
// whose values are always there.
class CodedUnits {
 public:
  // Attaches the units to the model. Stream, model and groups must outlive it.
  CodedUnits(Stream& stream, Transformer& model, const Groups& groups, uint64_t seed = 0);

 private:
  std::optional<ShardPlan> plan_;
  std::unique_ptr<UnitStore> units_;
};

}  // namespace witan
