#include <gmock/gmock.h>

#include "support/adjoint.h"
#include "support/attention.h"
#include "support/attention_pass.h"
#include "support/dropout.h"
#include "support/message_of.h"
#include "support/thread_peers.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/kernels/common/blocks.h"
#include "witan/ops/attention/attention.h"

namespace witan {
namespace {

using test::message_of;
using testing::attention_pass;
using testing::close;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::own_heads_of;
using testing::Rank;
using testing::share_of;
using testing::ThreadRank;
using testing::values;

// A whole sequence, which every rank of a test can create.
struct Case {
  int64_t B, S, H, G, hd;
  std::vector<int64_t> documents = {};  // lengths, in every row; empty: no ids
  DType dtype = DType::f64;
  double dropout = 0;
  int64_t window = 0;
  int64_t hd_v = hd;

  Tensor ids(Rank& rank) const { return testing::document_ids(rank, B, S, documents); }
  std::vector<Tensor> inputs(Rank& rank) const {
    const Shape keys{B, S, G, hd};
    return {rank.normal({B, S, H, hd}, dtype, "q"), rank.normal(keys, dtype, "k"),
            rank.normal(keys.with(3, hd_v), dtype, "v")};
  }
  Tensor dy(Rank& rank) const { return rank.normal({B, S, H, hd_v}, dtype, "dy"); }
  bool shares(int n) const { return G % n != 0; }
};

using Results = std::vector<Tensor>;  // y, dq, dk, dv

ops::AttentionArgs args_of(Rank& rank, const Case& c, int64_t first_head) {
  kernels::Dropout how = testing::dropout_of(rank, c.dropout);
  how.heads = c.H;
  how.first_head = first_head;
  return {0.4, how, {}, c.window};
}

Results whole(Rank& rank, const Case& c) {
  return attention_pass(rank.stream, c.inputs(rank), c.dy(rank), [&](Tape& tape, const std::vector<Var>& in) {
    return ops::attention(tape, in[0], in[1], in[2], c.ids(rank), args_of(rank, c, 0));
  });
}

Results by_heads(Rank& rank, Group& group, const Case& c) {
  const auto mine = [&](const Tensor& x) { return share_of(rank, x, group.size(), group.rank()); };
  std::vector<Tensor> inputs = c.inputs(rank);
  for (Tensor& input : inputs) input = mine(input);
  const auto args = args_of(rank, c, group.rank() * c.H / group.size());
  return attention_pass(rank.stream, inputs, mine(c.dy(rank)), [&](Tape& tape, const std::vector<Var>& in) {
    const std::vector<Var> all = ops::gather_sequence(tape, in, group);
    return ops::scatter_sequence(tape, ops::attention(tape, all[0], all[1], all[2], c.ids(rank), args), group);
  });
}

// Expects the bits of one rank; for keys and values that ranks share, up to the rounding of sums in another order.
void expect_whole(const Case& c, int n, double tolerance) {
  SCOPED_TRACE(cat(n, " ranks, S=", c.S, " H=", c.H, " G=", c.G, " hd=", c.hd, " ", c.dtype));
  on_ranks(n, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const Results expected = whole(rank, c), got = by_heads(rank, *group, c);
    const char* names[] = {"y", "dq", "dk", "dv"};
    for (size_t i = 0; i < got.size(); ++i) {
      const Tensor want = share_of(rank, expected[i], n, rank.rank);
      if (i < 2 || !c.shares(n))
        EXPECT_EQ(values(got[i]), values(want)) << names[i] << " of rank " << rank.rank;
      else
        EXPECT_TRUE(close(got[i], want, tolerance, tolerance)) << names[i] << " of rank " << rank.rank;
    }
  });
}

TEST(SequenceHeads, HaveTheBitsOfOneRank) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 2e-5 : 6e-2;
    for (const int n : {1, 2, 4})
      for (const Case& c :
           {Case{.B = 2, .S = 48, .H = 8, .G = 4, .hd = 5}, Case{.B = 1, .S = 24, .H = 4, .G = 1, .hd = 7},
            Case{.B = 1, .S = 16, .H = 4, .G = 4, .hd = 1}, Case{.B = 2, .S = 240, .H = 4, .G = 2, .hd = 16}}) {
        Case of = c;
        of.dtype = dtype;
        expect_whole(of, n, tolerance);
      }
    expect_whole({.B = 1, .S = 12, .H = 6, .G = 3, .hd = 4, .dtype = dtype}, 3, tolerance);
  }
}

TEST(SequenceHeads, DocumentsWindowsAndValueSizesMatchTheWhole) {
  for (const int n : {2, 4})
    for (const int64_t window : {0, 1, 9, 100}) {
      expect_whole({.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .documents = {10, 1, 30, 7}, .window = window}, n, 1e-12);
      expect_whole(
          {.B = 1, .S = 240, .H = 4, .G = 4, .hd = 8, .documents = {70, 99, 1, 1, 69}, .window = window, .hd_v = 3}, n,
          1e-12);
    }
}

// Masks are numbered by heads and positions of the whole, whichever rank draws them, in chunks of any length.
TEST(SequenceHeads, DropTheSameProbabilitiesAsTheWhole) {
  for (const int n : {2, 4}) {
    expect_whole({.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .dropout = 0.4}, n, 1e-12);
    expect_whole({.B = 2, .S = 24, .H = 8, .G = 1, .hd = 5, .documents = {20, 4}, .dropout = 0.3}, n, 1e-12);
  }
}

TEST(SequenceHeads, SharedGradientsAreSummedInRankOrder) {
  on_ranks(4, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 2, 2, 1}, DType::bf16, "x"));
    const Var y = ops::gather_sequence(tape, {x}, *group).front();
    const Tensor dy = rank.own_normal(y.shape(), DType::bf16, "dy");
    tape.backward({{y, dy}});
    const std::vector<double> dx = values(tape.gradient(x));
    for (int head = 0; head < 2; ++head)
      for (int s = 0; s < 2; ++s) {
        float sum = 0;
        for (int from = 2 * head; from < 2 * head + 2; ++from) {
          const auto theirs = values(rank.normal(y.shape(), DType::bf16, cat("dy of rank ", from)));
          sum += static_cast<float>(theirs[static_cast<size_t>(testing::zigzag(8, 4, rank.rank).at(s))]);
        }
        EXPECT_EQ(dx[static_cast<size_t>(s * 2 + head)], static_cast<double>(bf16(sum)));
      }
  });
}

// The adjoint of this collective is the collective in the opposite direction and, if heads are shared, their gradients
// are summed.
TEST(SequenceHeads, AdjointsAreExact) {
  const Placement positions = Placement::shard(1), heads = Placement::shard(2);
  for (const int n : {2, 3, 4})
    for (const int64_t P : {1, n, 2 * n}) {
      testing::check_adjoint(
          "gather_sequence", n, {2, 4, P, 3}, positions, heads,
          [](Tape& tape, const Var& x, Group& group) { return ops::gather_sequence(tape, {x}, group).front(); });
      testing::check_adjoint(
          "scatter_sequence", n, {2, 4 * n, P, 3}, heads, positions,
          [](Tape& tape, const Var& x, Group& group) { return ops::scatter_sequence(tape, x, group); });
    }
}

// Heads of several sections side by side. Where ranks share a section's heads, gradients of its shares are summed into
// its columns.
TEST(SequenceHeads, SectionsHaveTheGradientsOfSeparateTensors) {
  const HeadSections sections = {{2, 3}, {4, 2}, {1, 5}};
  for (const int n : {2, 4})
    on_ranks(n, [&](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      constexpr int64_t kTokens = 4, kChannels = 2 * 3 + 4 * 2 + 5;
      const Tensor x = rank.own_normal({2, kTokens, kChannels}, DType::f64, "x");
      Tape tape(rank.stream);
      const Var together = tape.input(x);
      const Var whole = ops::gather_sequence(tape, together, sections, *group);
      std::vector<Var> apart, parts;
      int64_t first = 0;
      const auto columns = [&](const Tensor& of, int64_t begin, int64_t count) {
        const Tensor rows = of.reshape({of.size(0) * of.size(1), of.size(2)});
        const Tensor own = rank.stream.empty({rows.size(0), count}, of.dtype());
        kernels::copy_columns(rank.stream, own, rows, {0, begin, count});
        return own;
      };
      for (const HeadSection& of : sections) {
        apart.push_back(tape.input(columns(x, first, of.channels()).reshape({2, kTokens, of.heads, of.width})));
        first += of.channels();
      }
      parts = ops::gather_sequence(tape, apart, *group);
      const Tensor dy = rank.own_normal(whole.shape(), DType::f64, "dy");
      std::vector<std::pair<Var, Tensor>> roots = {{whole, dy}};
      first = 0;
      for (const Var& part : parts) {
        const int64_t count = part.size(2) * part.size(3);
        EXPECT_EQ(values(columns(whole.value(), first, count)), values(part.value()));
        roots.emplace_back(part, columns(dy, first, count).reshape(part.shape()));
        first += count;
      }
      tape.backward(roots);
      first = 0;
      for (size_t i = 0; i < sections.size(); ++i) {
        EXPECT_EQ(values(columns(tape.gradient(together), first, sections[i].channels())),
                  values(tape.gradient(apart[i])))
            << "section " << i << " of " << n << " ranks";
        first += sections[i].channels();
      }
    });
}

TEST(SequenceHeads, SectionsOfOneRankAreTheTensorItself) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 4, 6}, DType::f32, "x"));
    EXPECT_EQ(ops::gather_sequence(tape, x, {{2, 3}}, *group).value().raw(), x.value().raw());
    EXPECT_EQ(message_of<ShapeError>([&] {
                ops::gather_sequence(tape, x, HeadSections(4, {1, 1}), *group);
              }),
              "gather_sequence: 1 to 3 sections of x [B, S, C], got 4 of [1, 4, 6]");
  });
}

// Unused outputs have no gradient, but all ranks make the same calls.
TEST(SequenceHeads, UnusedOutputsHaveGradientsOfZero) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    Tape tape(rank.stream);
    const Var x = tape.input(rank.normal({1, 4, 2, 3}, DType::f32, "x"));
    const Var z = tape.input(rank.normal({1, 4, 1, 3}, DType::f32, "z"));
    const std::vector<Var> all = ops::gather_sequence(tape, {x, z}, *group);
    tape.backward({{all[0], {}}});
    EXPECT_EQ(values(tape.gradient(x)), std::vector<double>(24, 1));
    EXPECT_EQ(values(tape.gradient(z)), std::vector<double>(12, 0));
  });
}

TEST(SequenceHeads, AcceptNoTokens) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    for (const Shape& shape : {Shape{0, 4, 2, 4}, Shape{2, 0, 2, 4}}) {
      Tape tape(rank.stream);
      const Var q = tape.input(rank.stream.empty(shape, DType::bf16));
      const std::vector<Var> all = ops::gather_sequence(tape, {q, q, q}, *group);
      const Var y = ops::scatter_sequence(tape, ops::attention(tape, all[0], all[1], all[2], {}, {}), *group);
      tape.backward({{y, {}}});
      EXPECT_EQ(tape.gradient(q).elements(), 0);
    }
  });
}

TEST(SequenceHeads, PeerMemoryGivesTheSameBits) {
  for (const Case& c : {Case{.B = 2, .S = 48, .H = 8, .G = 4, .hd = 5, .dtype = DType::bf16},
                        Case{.B = 1, .S = 32, .H = 4, .G = 1, .hd = 8, .dtype = DType::bf16}})
    on_ranks(4, [&](ThreadRank& rank) {
      const auto through = rank.everyone("context"), plain = rank.everyone("plain");
      testing::PeeredGroup peered(*through);
      const Results expected = by_heads(rank, *plain, c), got = by_heads(rank, peered, c);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(values(got[i]), values(expected[i])) << i;
    });
}

// A rank computes its share of the pairs in one call of attention, whatever the window, and its plan shows that.
TEST(SequenceHeads, PlansMatchTheRun) {
  for (const int64_t window : {0, 45}) {
    const Case c{.B = 1, .S = 256, .H = 8, .G = 2, .hd = 16, .dtype = DType::bf16, .window = window, .hd_v = 24};
    on_ranks(4, [&](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      by_heads(rank, *group, c);
      ThreadPool pool(1);
      Stream meta({Device::Kind::meta}, Arena::meta(), pool);
      MetaGroup planned(4, rank.rank, "context");
      const auto part = [&](int64_t heads, int64_t w) { return meta.empty({1, 64, heads, w}, DType::bf16); };
      attention_pass(meta, {part(8, 16), part(2, 16), part(2, 24)}, {}, [&](Tape& tape, const std::vector<Var>& in) {
        const std::vector<Var> all = ops::gather_sequence(tape, in, planned);
        return ops::scatter_sequence(
            tape, ops::attention(tape, all[0], all[1], all[2], {}, {.scale = 0.4, .window = window}), planned);
      });
      EXPECT_EQ(group->sent(), planned.sent());
      EXPECT_EQ(rank.stream.flops(), meta.flops());
      // Queries and their results, of 2 heads for each other rank, and keys and values of one head, in both directions.
      EXPECT_EQ(group->sent().at("all_to_all_equal"), 2.0 * 3 * 64 * (2 * (16 + 24) + 16 + 24) * 2);
    });
  }
}

TEST(SequenceHeads, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  MetaGroup group(2, 1, "context");
  const auto var = [&](const Shape& shape, DType dtype = DType::f32) {
    return tape.input(rank.stream.empty(shape, dtype));
  };
  const auto message = [&](const std::vector<Var>& xs) {
    return message_of<ShapeError>([&] { ops::gather_sequence(tape, xs, group); });
  };
  EXPECT_EQ(message({var({4})}), "gather_sequence: x must be [B, S, heads, w], got [4]");
  EXPECT_EQ(message({var({1, 4, 2, 3}), var({1, 6, 2, 3})}),
            "gather_sequence: float32 [1, 6, 2, 3] is not of the sequences of float32 [1, 4, 2, 3]");
  EXPECT_THAT(message({var({1, 4, 2, 3}), var({1, 4, 2, 3}, DType::bf16)}), HasSubstr("bfloat16"));
  EXPECT_THAT(message({var({1, 4, 3, 3})}), HasSubstr("axis context"));
  EXPECT_THAT(message({}), HasSubstr("1 to 3 tensors, got 0"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                ops::scatter_sequence(tape, var({1, 6, 2, 3}), group);
              }),
              HasSubstr("two equal chunks for each of its 2 ranks"));
}

}  // namespace
}  // namespace witan
