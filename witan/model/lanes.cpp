#include "witan/model/lanes.h"

#include <array>
#include <utility>

#include "witan/autograd/concurrent.h"
#include "witan/ops/shape/overlap.h"

namespace witan {
namespace {

// Rows [first, first + rows) of what is per sequence, or per token.
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
    blocks.front()->gather_for_mixer(tape_, a_);
    for (size_t i = 0; i < blocks.size(); ++i) {
      Block* const next = i + 1 < blocks.size() ? blocks[i + 1].get() : nullptr;
      attention(*blocks[i]);
      if (blocks[i]->is_moe())
        experts(*blocks[i], next, moe);
      else
        mlp(*blocks[i], next);
    }
    if (before_ != nullptr) before_->add_mlp(tape_, b_);
    guard_before_.reset();
    return joined();
  }

 private:
  template <class Beside, class Meanwhile>
  void together(const Beside& beside, const Meanwhile& meanwhile) {
    concurrently(
        tape_, side_, [&](Tape&) { beside(); }, [&](Tape&) { meanwhile(); });
  }

  // A's tokens are gathered; B's are not, nor has B the sums of the block before.
  void attention(Block& block) {
    const std::vector<Var> weights = block.mixer_weights(tape_);
    together(
        [&] {
          if (before_ != nullptr) before_->add_mlp(tape_, b_);
          block.gather_for_mixer(tape_, b_);
        },
        [&] { block.mix(tape_, a_, weights); });
    before_ = nullptr;
    guard_before_.reset();
    together(
        [&] {
          block.add_mixed(tape_, a_);
          if (!block.is_moe()) block.gather_for_mlp(tape_, a_);
        },
        [&] { block.mix(tape_, b_, weights); });
  }

  void mlp(Block& block, Block* next) {
    together(
        [&] {
          block.add_mixed(tape_, b_);
          block.gather_for_mlp(tape_, b_);
        },
        [&] { block.apply_mlp(tape_, a_); });
    guard_before_ = std::move(guard_);
    if (next != nullptr) guard_ = next->guard(tape_);
    together(
        [&] {
          block.add_mlp(tape_, a_);
          if (next != nullptr) next->gather_for_mixer(tape_, a_);
        },
        [&] { block.apply_mlp(tape_, b_); });
    before_ = &block;
  }

  void experts(Block& block, Block* next, const MoePass& moe) {
    block.add_mixed(tape_, b_);
    split(moe(block, joined()));
    guard_.reset();
    if (next == nullptr) return;
    guard_ = next->guard(tape_);
    next->gather_for_mixer(tape_, a_);
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
    return {ops::join_batch(tape_, {a.x, b.x}), ops::join_batch(tape_, {a.added, b.added})};
  }

  Tape& tape_;
  Stream& side_;
  Lane a_, b_;
  Block* before_ = nullptr;  // a dense block whose sums B has not been given yet
  std::unique_ptr<UnitGuard> guard_before_, guard_;
};

}  // namespace

Residual through_in_lanes(Tape& tape, Stream& side, const std::vector<std::unique_ptr<Block>>& blocks, Residual x,
                          const Positions& where, const MoePass& moe) {
  LanePass pass(tape, side, where, x.x.size(0));
  return pass.through(blocks, std::move(x), moe);
}

}  // namespace witan
