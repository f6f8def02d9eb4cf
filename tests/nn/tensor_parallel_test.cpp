// Compares layers divided among thread ranks with the undivided ones, which every rank computes too, in float64.
#include "witan/nn/tensor_parallel.h"

#include <cmath>

#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/kernels/attention/rope.h"
#include "witan/ops/attention/attention.h"
#include "witan/ops/attention/heads.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/norm/norm.h"
#include "witan/ops/pointwise/activation.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {
namespace {

using test::message_of;
using testing::close;
using testing::on_ranks;
using testing::Rank;
using testing::ThreadRank;
using testing::values;

constexpr int64_t B = 2, S = 8, D = 6;
constexpr double kEps = 1e-5;

struct Case {
  int ranks;
  Placement residual;
  TensorAxis::Keeps keeps;
};
const std::vector<Case> kCases = [] {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 4}) {
    cases.push_back({ranks, Placement::replicate(), TensorAxis::Keeps::own});
    for (const auto keeps : {TensorAxis::Keeps::own, TensorAxis::Keeps::all})
      cases.push_back({ranks, Placement::shard(1), keeps});
  }
  return cases;
}();

// A rank's part of a tensor: rows [begin, end) of `dim` in each of the `blocks` that the dim consists of.
Tensor cut(Rank& rank, const Tensor& x, int dim, int64_t begin, int64_t end, int64_t blocks = 1) {
  int64_t before = blocks, inner = 1;
  for (int i = 0; i < x.shape().dims(); ++i)
    if (i != dim) (i < dim ? before : inner) *= x.size(i);
  const int64_t size = x.size(dim) / blocks;
  Tensor out = rank.stream.empty(x.shape().with(dim, blocks * (end - begin)), x.dtype());
  for (int64_t a = 0; a < before; ++a)
    std::copy_n(x.data<double>() + (a * size + begin) * inner, (end - begin) * inner,
                out.data<double>() + a * (end - begin) * inner);
  return out;
}

// How the ranks hold a parameter, or the residual stream.
struct Held {
  Placement placement;      // of the value
  Placement gradient;       // of its gradient
  int64_t blocks = 1;       // of the divided dim: 2 for gate and up
  std::vector<int64_t> at;  // where each rank's part begins, and where the last ends; empty: equal parts

  static Held cut(int dim, int64_t blocks = 1, std::vector<int64_t> at = {}) {
    return {Placement::shard(dim), Placement::shard(dim), blocks, std::move(at)};
  }
  // A parameter that is whole on every rank, and applied to the residual stream.
  static Held whole(Placement residual) {
    const bool divided = residual.kind == Placement::Kind::shard;
    return {Placement::replicate(), divided ? Placement::partial() : Placement::replicate(), 1, {}};
  }
  static Held whole_with_own_uses() { return {Placement::replicate(), Placement::partial(), 1, {}}; }
};

// Runs a layer whole and divided, with the same tensors, and expects the divided layer's output and gradients to be
// parts of the whole one's. Inputs are x [B, S, D], held as the residual stream is, and parameters.
class Comparison {
 public:
  Comparison(const Case& of, ThreadRank& rank)
      : rank_(rank), group_(rank.everyone("tensor")), axis_{*group_, of.residual, of.keeps} {}

  const TensorAxis& axis() const { return axis_; }
  int64_t ranks() const { return group_->size(); }
  int64_t index() const { return group_->rank(); }
  Held residual() const {
    const Placement p = axis_.residual;
    return {p, p, 1, {}};
  }

  struct Input {
    Tensor whole;
    Held held;
  };
  using Layer = std::function<Var(Tape&, const std::vector<Var>&)>;

  void expect_equal(const std::vector<Input>& inputs, const Layer& whole, const Layer& divided, const Held& output) {
    Tape undivided(rank_.stream), tape(rank_.stream);
    std::vector<Var> wholes, parts;
    for (const Input& input : inputs) {
      wholes.push_back(undivided.input(input.whole));
      parts.push_back(tape.input(part(input.whole, input.held)));
    }
    const double tolerance = ranks() == 1 ? 0 : 1e-12;
    const Var expected = whole(undivided, wholes), y = divided(tape, parts);
    EXPECT_TRUE(close(y.value(), part(expected.value(), output), tolerance, tolerance)) << "output";
    const Tensor dy = rank_.normal(expected.shape(), DType::f64, "dy");
    undivided.backward({{expected, dy}});
    tape.backward({{y, part(dy, output)}});
    for (size_t i = 0; i < inputs.size(); ++i) {
      Held held = inputs[i].held;
      const Tensor gradient = rank_.tensor<double>(parts[i].shape(), values(tape.gradient(parts[i])));
      if (held.gradient.kind == Placement::Kind::partial) group_->all_reduce(rank_.stream, gradient);
      EXPECT_TRUE(close(gradient, part(undivided.gradient(wholes[i]), held), tolerance, tolerance))
          << "gradient of input " << i;
    }
  }

 private:
  Tensor part(const Tensor& whole, const Held& held) {
    if (held.placement.kind != Placement::Kind::shard) return whole;
    const int64_t size = whole.size(held.placement.dim) / held.blocks / ranks();
    const auto r = static_cast<size_t>(index());
    const int64_t begin = held.at.empty() ? index() * size : held.at[r],
                  end = held.at.empty() ? begin + size : held.at[r + 1];
    return cut(rank_, whole, held.placement.dim, begin, end, held.blocks);
  }

  ThreadRank& rank_;
  std::unique_ptr<HostGroup> group_;
  TensorAxis axis_;
};

void on_all_cases(const std::function<void(Comparison&, ThreadRank&)>& body) {
  for (const Case& of : kCases)
    on_ranks(of.ranks, [&](ThreadRank& rank) {
      SCOPED_TRACE(cat(of.ranks, " ranks, residual ", of.residual));
      Comparison comparison(of, rank);
      body(comparison, rank);
    });
}

// x + W2 swiglu(W1 norm(x) + b1) + b2, with gate and up halves of W1 [2 F, D].
TEST(TensorParallel, MlpMatchesTheUndividedOne) {
  constexpr int64_t F = 12;
  on_all_cases([](Comparison& of, ThreadRank& rank) {
    const auto layer = [](Tape& tape, const std::vector<Var>& in, const auto& first, const auto& second) {
      const Var h = first(tape, ops::rmsnorm(tape, in[0], in[1], kEps), in[2], in[3]);
      return ops::add(tape, in[0], second(tape, ops::swiglu(tape, h, {}), in[4], in[5]));
    };
    const auto normal = [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f64, name); };
    of.expect_equal(
        {{normal({B, S, D}, "x"), of.residual()},
         {normal({D}, "norm"), Held::whole(of.axis().residual)},
         {normal({2 * F, D}, "first"), Held::cut(0, 2)},
         {normal({2 * F}, "first bias"), Held::cut(0, 2)},
         {normal({D, F}, "second"), Held::cut(1)},
         {normal({D}, "second bias"), Held::whole(of.axis().residual)}},
        [&](Tape& tape, const std::vector<Var>& in) { return layer(tape, in, ops::linear, ops::linear); },
        [&](Tape& tape, const std::vector<Var>& in) {
          const auto first = [&](Tape& on, const Var& x, const Var& w, const Var& bias) {
            return ops::linear(on, to_sharded_layer(on, x, of.axis()), w, bias);
          };
          const auto second = [&](Tape& on, const Var& x, const Var& w, const Var& bias) {
            return from_sharded_layer(on, ops::linear(on, x, w, {}), of.axis(), bias);
          };
          return layer(tape, in, first, second);
        },
        of.residual());
  });
}

// x + Wo attention(norm(x)): heads are divided, and so are the G groups of keys and values, or ranks share them if
// there are fewer groups than ranks.
void expect_attention_equal(Comparison& of, ThreadRank& rank, int64_t H, int64_t G) {
  constexpr int64_t hd = 4;
  const bool shares = G < of.ranks();
  const kernels::RopeArgs rope{10000, hd, false, false};
  const Tensor positions = rank.stream.empty({B, S}, DType::i32), table = rank.stream.empty({B * S, hd}, DType::f64);
  for (int64_t i = 0; i < B * S; ++i) positions.data<int32_t>()[i] = static_cast<int32_t>(i % S);
  kernels::rotary_table(rank.stream, table, positions, rope);
  const auto layer = [&](Tape& tape, const std::vector<Var>& in, const auto& first, const auto& last, int64_t heads,
                         int64_t groups) {
    const Var h = first(tape, ops::rmsnorm(tape, in[0], in[1], kEps));
    const auto [q, k, v] = ops::project_heads(tape, h, {in[2], in[3], in[4]}, table, {heads, groups, hd, hd, rope});
    const Var mixed = ops::attention(tape, q, k, v, {}, {1 / std::sqrt(static_cast<double>(hd))});
    return ops::add(tape, in[0], last(tape, ops::reshape(tape, mixed, {B, S, heads * hd}), in[5]));
  };
  const auto normal = [&](const Shape& shape, const char* name) { return rank.normal(shape, DType::f64, name, 0.5); };
  const Held of_group = shares ? Held::whole_with_own_uses() : Held::cut(0);
  of.expect_equal(
      {{normal({B, S, D}, "x"), of.residual()},
       {normal({D}, "norm"), Held::whole(of.axis().residual)},
       {normal({H * hd, D}, "q"), Held::cut(0)},
       {normal({G * hd, D}, "k"), of_group},
       {normal({G * hd, D}, "v"), of_group},
       {normal({D, H * hd}, "o"), Held::cut(1)}},
      [&](Tape& tape, const std::vector<Var>& in) {
        return layer(
            tape, in, [](Tape&, const Var& x) { return x; },
            [](Tape& on, const Var& x, const Var& w) { return ops::linear(on, x, w, {}); }, H, G);
      },
      [&](Tape& tape, const std::vector<Var>& in) {
        return layer(
            tape, in, [&](Tape& on, const Var& x) { return to_sharded_layer(on, x, of.axis()); },
            [&](Tape& on, const Var& x, const Var& w) {
              return from_sharded_layer(on, ops::linear(on, x, w, {}), of.axis());
            },
            H / of.ranks(), shares ? G : G / of.ranks());
      },
      of.residual());
}

TEST(TensorParallel, AttentionMatchesTheUndividedOne) {
  on_all_cases([](Comparison& of, ThreadRank& rank) { expect_attention_equal(of, rank, 8, 4); });
}

TEST(TensorParallel, AttentionMayShareKeysAndValuesOfFewerGroups) {
  on_all_cases([](Comparison& of, ThreadRank& rank) { expect_attention_equal(of, rank, 8, 1); });
}

// Loss parallel, from ids to loss, with one table for embedding and head, whose rows do not divide evenly.
TEST(TensorParallel, VocabularyMatchesTheUndividedOne) {
  constexpr int64_t V = 11, T = B * S;
  on_all_cases([](Comparison& of, ThreadRank& rank) {
    const std::vector<int64_t> at = of.ranks() == 1   ? std::vector<int64_t>{0, V}
                                    : of.ranks() == 2 ? std::vector<int64_t>{0, 4, V}
                                                      : std::vector<int64_t>{0, 3, 9, 9, V};
    const ops::VocabularyPart part{at[static_cast<size_t>(of.index())], V};
    const Tensor ids = rank.stream.empty({B, S}, DType::i32), targets = rank.stream.empty({T}, DType::i32);
    for (int64_t t = 0; t < T; ++t) {
      ids.data<int32_t>()[t] = static_cast<int32_t>(t * 7 % V);
      targets.data<int32_t>()[t] = static_cast<int32_t>(t * 5 % V);
    }
    const Tensor weights = rank.normal({T}, DType::f64, "weights");
    const auto tokens = [&](Tape& tape, const Var& logits) { return ops::reshape(tape, logits, {T, logits.size(2)}); };
    of.expect_equal(
        {{rank.normal({V, D}, DType::f64, "table"), Held::cut(0, 1, at)},
         {rank.normal({D}, DType::f64, "norm"), Held::whole(of.axis().residual)}},
        [&](Tape& tape, const std::vector<Var>& in) {
          const Var h = ops::rmsnorm(tape, ops::embedding(tape, ids, in[0]), in[1], kEps);
          return ops::cross_entropy(tape, tokens(tape, ops::linear(tape, h, in[0], {})), targets, weights).loss;
        },
        [&](Tape& tape, const std::vector<Var>& in) {
          const Var x = from_sharded_layer(tape, ops::embedding(tape, ids, in[0], part), of.axis());
          const Var whole = to_sharded_layer(tape, ops::rmsnorm(tape, x, in[1], kEps), of.axis());
          const Var logits = ops::linear(tape, whole, in[0], {});
          return ops::cross_entropy(tape, tokens(tape, logits), targets, weights, part, &of.axis().group).loss;
        },
        Held::whole(Placement::replicate()));
  });
}

// The communication of a layer, forward and backward: the bytes that a rank sends in each collective.
TEST(TensorParallel, UsesTheCollectivesThatItsHeaderLists) {
  using Sent = std::map<std::string, double>;
  constexpr int64_t n = 4, F = 16;
  constexpr double kWhole = 8.0 * B * S * D, kShare = (n - 1.0) / n;
  const auto sent_by = [](Placement residual, TensorAxis::Keeps keeps) {
    Rank rank(1);
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    MetaGroup group(n, 1, "tensor");
    const TensorAxis axis{group, residual, keeps};
    Tape tape(meta);
    const int64_t tokens = residual.kind == Placement::Kind::shard ? S / n : S;
    const Var x = tape.input(meta.empty({B, tokens, D}, DType::f64)),
              up = tape.input(meta.empty({F / n, D}, DType::f64)),
              down = tape.input(meta.empty({D, F / n}, DType::f64)), bias = tape.input(meta.empty({D}, DType::f64));
    const Var h = ops::gelu(tape, ops::linear(tape, to_sharded_layer(tape, x, axis), up, {}), {});
    const Var y = from_sharded_layer(tape, ops::linear(tape, h, down, {}), axis, bias);
    EXPECT_EQ(y.shape(), x.shape());
    const Sent forward = group.sent();
    group.reset_sent();
    tape.backward({{y, {}}});
    return std::pair(forward, group.sent());
  };
  using Keeps = TensorAxis::Keeps;
  const Sent reduced{{"all_reduce", 2 * kWhole * kShare}};
  EXPECT_EQ(sent_by(Placement::replicate(), Keeps::own), std::pair(reduced, reduced));
  const Sent divided{{"all_gather", kWhole * kShare}, {"reduce_scatter", kWhole * kShare}};
  EXPECT_EQ(sent_by(Placement::shard(1), Keeps::all), std::pair(divided, divided));
  const Sent twice{{"all_gather", 2 * kWhole * kShare}, {"reduce_scatter", kWhole * kShare}};
  EXPECT_EQ(sent_by(Placement::shard(1), Keeps::own), std::pair(divided, twice));
}

// With Keeps::own, no rank holds all tokens between forward and backward.
TEST(TensorParallel, GatheredTokensAreNotKept) {
  const auto kept = [](TensorAxis::Keeps keeps) {
    Rank rank(1);
    Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
    MetaGroup group(2, 0, "tensor");
    Tape tape(meta);
    const Var x = tape.input(meta.empty({64, 64, 512}, DType::bf16)), w = tape.input(meta.empty({1, 512}, DType::bf16));
    ops::linear(tape, to_sharded_layer(tape, x, {group, Placement::shard(1), keeps}), w, {});
    return meta.arena().live(MemoryTag::activations);
  };
  EXPECT_EQ(kept(TensorAxis::Keeps::all) - kept(TensorAxis::Keeps::own), 64 * 128 * 512 * 2);
}

TEST(TensorParallel, RefusesOtherResidualStreams) {
  Rank rank(1);
  Tape tape(rank.stream);
  MetaGroup group(2, 0, "tensor");
  const Var x = tape.input(rank.normal({2, 2, 2}, DType::f32, "x"));
  for (const Placement other :
       {Placement::shard(0), Placement::partial(), Placement::replicate(Placement::Uses::own)}) {
    EXPECT_EQ(message_of<ShapeError>([&] {
                to_sharded_layer(tape, x, {group, other});
              }),
              cat("tensor parallel over axis tensor: the residual stream must be Replicate or Shard(1), got ", other));
    EXPECT_THROW(from_sharded_layer(tape, x, {group, other}), ShapeError);
  }
}

}  // namespace
}  // namespace witan
