// Values of a model's units (model/unit.h) that data-parallel ranks shard, gathered while guards hold them.
//
// Two strategies. Where parameters are sharded (ZeRO stage 3, FSDP: Zhao et al., 2023) a rank holds its shard of each
// unit alone, cut where its gradients are (ownership.h): of experts over expert_shard, of all else over shard and
// context. The whole of a unit is a tensor for each of the two and each dtype, where parameters begin at multiples of
// 512 bytes or right beside their neighbour. It is there from acquire() until it is given back, with
// reshard_after_forward
//   - after the forward of its block; the last of a chunk of layers when the next pass comes to another block, since a
//     backward begins with it,
//   - after the backward of its block; what is no block's when a pass goes on to the next block, or ends.
// In a pipeline that is for every micro-batch; without reshard_after_forward once for all of a step.
//
// Where the optimizer alone is sharded, or gradients too (ZeRO stages 1 and 2: Rajbhandari et al., 2020), every rank
// holds the whole of every unit, in which after publish() the shards of other ranks are old. Units are gathered in the
// model's order, each when it is first acquired, in the next step's forward or by whoever reads it before.
//
// On a GPU units are gathered on a stream of their own, the next one beside the computation of this one. All ranks that
// share units make the same calls in the same order.
#pragma once

#include <memory>
#include <vector>

#include "witan/model/unit.h"
#include "witan/parallel/sharding/ownership.h"

namespace witan {

class UnitStore final : public UnitAccess {
 public:
  struct Options {
    bool reshard_after_forward = true;
    uint64_t seed = 0;
    bool torch = false;                        // initial values are PyTorch's, which are drawn
    std::vector<const Parameter*> drawn = {};  // for all of these in turn: a pipeline's; none: the units' own
    OwnershipPolicy policy = {};
  };
  // Of the units whose parameters `ownership` is of, in its order. Where parameters are sharded it gives them, who have
  // none, the values that they begin with. Until it is destroyed, values are read under guards alone. Stream,
  // parameters and groups must outlive it.
  UnitStore(Stream& stream, const std::vector<Unit>& units, const Ownership& ownership, const Groups& groups,
            const Options& options);
  ~UnitStore() override;

  // From now on units are gathered on this stream, which reduces gradients over the same groups, and with `prefetch`
  // the next one while this one computes. It must outlive the last use. Null: on the main stream, when they are used.
  void gather_on(Stream* beside, bool prefetch);

  void begin_forward() override { in_backward_ = false; }
  void begin_backward() override { in_backward_ = true; }
  void end_backward() override;
  void acquire(int unit, Use use) override;
  void release(int unit, Use use) override;

  // Around forwards that no backward follows: begin_passes() before the first, end_pass() after each, give_back() after
  // the last. Every pass then begins with the same units: with none, or without reshard_after_forward with all.
  void begin_passes();
  void end_pass();
  // Gives back what is gathered of sharded parameters: before values change, and where nothing reads them for a while.
  void give_back();

  // Every rank has updated its own shards: of the others' it has old values now.
  void publish();
  // Gathers what is published and not here yet, of all units; nothing of sharded parameters.
  void gather();
  bool gathered() const { return arrived_ == published_.size(); }

 private:
  // What one group gathers of a unit with sharded parameters.
  struct Whole {
    std::vector<size_t> parameters;  // indices in the model
    std::vector<int64_t> places;     // of each in the whole
    std::vector<int64_t> begins;     // [ranks + 1]: elements of the whole
    Group* group;                    // null: every rank holds the whole
    Tensor shard;                    // [elements of this rank]
    Tensor whole;                    // [begins.back()], while it is gathered
  };
  // What one group gathers of a unit whose update is sharded.
  struct Pieces {
    Group* group;
    std::vector<OwnedPiece> pieces;
  };
  struct Entry {
    UnitState state;
    bool block = false;
    int number = 0, chunk = 0;
    std::vector<Whole> wholes = {};
    std::vector<Pieces> pieces = {};       // of experts, and of all else
    bool gathered = false, bound = false;  // there; and known to the parameters
    bool under_way = false;                // on the other stream, and not waited for
  };

  bool sharded() const { return groups_.layout().divides_values(); }
  Entry& entry_of(int unit);
  // Of sharded parameters:
  void add_wholes(Entry& entry, const BucketPlan& plan) const;
  void begin_values(const Options& options);
  void init_shard(Whole& whole, size_t index, uint64_t seed, TorchRandom* torch) const;
  void enter(size_t unit);
  void leave(size_t unit);
  void need(size_t unit);
  void prefetch(size_t unit, int chunk);
  void fetch(Entry& entry);
  void gather(Entry& entry, Stream& on) const;
  void bind(Entry& entry, bool whole) const;
  void give_back(Entry& entry);
  // Of a sharded update:
  void add_pieces(Entry& entry, size_t first_parameter, size_t parameters, const Ownership& ownership) const;
  void catch_up(const Entry& entry);
  void fetch_published();

  Stream& stream_;
  const Groups& groups_;
  Stream* beside_ = nullptr;
  bool prefetches_ = false;
  bool reshard_after_forward_;
  std::vector<Parameter*> parameters_;
  std::vector<Entry> entries_;  // in the model's order
  bool in_backward_ = false;
  std::vector<const Entry*> published_;  // those of which publish() makes anything old, in the model's order
  size_t fetched_ = 0, arrived_ = 0;     // of them, those that are under way or there, and those that are there
};

}  // namespace witan
