#include "witan/model/lanes.h"

#include <array>
#include <utility>

#include "witan/autograd/concurrent.h"
#include "witan/ops/shape/overlap.h"

namespace witan {
namespace {

// The positions of the sequences [first, first + rows).
Positions rows_of(const Positions& where, int64_t first, int64_t rows) {
  Positions part = where;
  const auto narrow = [&](Tensor& x, int64_t per_row) {
    if (x.defined()) x = x.narrow(0, first * per_row, rows * per_row);
  };
  const int64_t S = where.positions.size(1);
  narrow(part.positions, 1);
  narrow(part.sequence_ids, 1);
  narrow(part.whole_ids, 1);
  for (RotaryTable& table : part.tables) narrow(table.angles, S);
  return part;
}

class LanePass {
 public:
  LanePass(Tape& tape, Stream& side, const Positions& where, int64_t sequences) : tape_(tape), side_(side) {
    a_.where = rows_of(where, 0, sequences / 2);
    b_.where = rows_of(where, sequences / 2, sequences / 2);
  }

  Residual through(const std::vector<std::unique_ptr<Block>>& blocks, Residual x, const MoePass& moe) {
    split(std::move(x));
    guard_ = blocks.front()->guard(tape_);
    blocks.front()->gather(tape_, a_, Half::mixer);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Part mlp{blocks[i].get(), Half::mlp}, next{i + 1 < blocks.size() ? blocks[i + 1].get() : nullptr};
      const bool moe_block = blocks[i]->is_moe();
      run({blocks[i].get(), Half::mixer}, moe_block ? Part() : mlp);
      if (moe_block)
        experts(*blocks[i], next, moe);
      else
        run(mlp, next);
    }
    finish_b();
    guard_before_.reset();
    return joined();
  }

 private:
  // A half of a block.
  struct Part {
    Block* block = nullptr;
    Half half = Half::mixer;
  };

  template <class Beside, class Meanwhile>
  void together(const Beside& beside, const Meanwhile& meanwhile) {
    concurrently(
        tape_, side_, [&](Tape&) { beside(); }, [&](Tape&) { meanwhile(); });
  }

  // Computes a part for both lanes. A's tokens are gathered before, and those of `next` for A at the end; B's sums of
  // the part before are added here, and its own are left to the next part. `next` is empty before experts and at the
  // end.
  void run(const Part& part, const Part& next) {
    std::vector<Var> weights;
    if (part.half == Half::mixer) weights = part.block->mixer_weights(tape_);
    together(
        [&] {
          finish_b();
          part.block->gather(tape_, b_, part.half);
        },
        [&] { part.block->apply(tape_, a_, part.half, weights); });
    guard_before_.reset();
    if (part.half == Half::mlp) {
      guard_before_ = std::move(guard_);
      if (next.block != nullptr) guard_ = next.block->guard(tape_);
    }
    together(
        [&] {
          part.block->add(tape_, a_, part.half);
          if (next.block != nullptr) next.block->gather(tape_, a_, next.half);
        },
        [&] { part.block->apply(tape_, b_, part.half, weights); });
    before_ = part;
  }

  void finish_b() {
    if (before_.block != nullptr) before_.block->add(tape_, b_, before_.half);
    before_ = {};
  }

  void experts(Block& block, const Part& next, const MoePass& moe) {
    finish_b();
    split(moe(block, joined()));
    guard_.reset();
    if (next.block == nullptr) return;
    guard_ = next.block->guard(tape_);
    next.block->gather(tape_, a_, next.half);
  }

  void split(Residual x) {
    const auto halves = ops::split_batch(tape_, x.x);
    for (size_t i = 0; i < 2; ++i) (i == 0 ? a_ : b_).stream = {halves[i], {}};
    if (!x.added.defined()) return;
    const auto added = ops::split_batch(tape_, x.added);
    a_.stream.added = added[0];
    b_.stream.added = added[1];
  }

  Residual joined() {
    const Residual a = std::exchange(a_.stream, {}), b = std::exchange(b_.stream, {});
    const Var x = ops::join_batch(tape_, {a.x, b.x});
    return {x, a.added.defined() ? ops::join_batch(tape_, {a.added, b.added}) : Var()};
  }

  Tape& tape_;
  Stream& side_;
  Lane a_, b_;
  Part before_;  // its sums are still to be added to B; empty: none
  std::unique_ptr<UnitGuard> guard_before_, guard_;
};

}  // namespace

Residual through_in_lanes(Tape& tape, Stream& side, const std::vector<std::unique_ptr<Block>>& blocks, Residual x,
                          const Positions& where, const MoePass& moe) {
  LanePass pass(tape, side, where, x.x.size(0));
  return pass.through(blocks, std::move(x), moe);
}

}  // namespace witan
