#include <gmock/gmock.h>

#include <mutex>

#include "support/attention.h"
#include "support/attention_pass.h"
#include "support/dropout.h"
#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/processes.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/ops/attention/attention.h"

namespace witan {
namespace {

using test::message_of;
using testing::attention_pass;
using testing::close;
using ::testing::HasSubstr;
using testing::on_ranks;
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
  bool promised = false;  // one sequence per row
  bool beside = false;    // blocks travel on a side stream
  int64_t window = 0;
  int64_t hd_v = hd;

  Tensor ids(Rank& rank) const { return testing::document_ids(rank, B, S, documents); }
  std::vector<Tensor> inputs(Rank& rank) const {
    const Shape keys{B, S, G, hd};
    return {rank.normal({B, S, H, hd}, dtype, "q"), rank.normal(keys, dtype, "k"),
            rank.normal(keys.with(3, hd_v), dtype, "v")};
  }
  Tensor dy(Rank& rank) const { return rank.normal({B, S, H, hd_v}, dtype, "dy"); }
};

// y, dq, dk, dv
using Results = std::vector<Tensor>;

Results whole(Rank& rank, const Case& c) {
  const auto how = testing::dropout_of(rank, c.dropout);
  return attention_pass(rank.stream, c.inputs(rank), c.dy(rank), [&](Tape& tape, const std::vector<Var>& in) {
    return ops::attention(tape, in[0], in[1], in[2], c.ids(rank), {0.4, how, {}, c.window});
  });
}

Results ring(Rank& rank, Group& group, const Case& c) {
  const auto how = testing::dropout_of(rank, c.dropout);
  const auto mine = [&](const Tensor& x) { return share_of(rank, x, group.size(), group.rank()); };
  std::vector<Tensor> inputs = c.inputs(rank);
  for (Tensor& input : inputs) input = mine(input);
  Stream side(rank.stream.device(), rank.stream.shared_arena(), rank.pool);
  const ops::AttentionArgs args{0.4, how, {.one_sequence_per_row = c.promised}, c.window};
  return attention_pass(rank.stream, inputs, mine(c.dy(rank)), [&](Tape& tape, const std::vector<Var>& in) {
    return ops::ring_attention(tape, in[0], in[1], in[2], mine(c.ids(rank)), group, args, c.beside ? &side : nullptr);
  });
}

void expect_whole(const Case& c, int n, double tolerance) {
  SCOPED_TRACE(::testing::Message() << n << " ranks, S=" << c.S << " H=" << c.H << " G=" << c.G << " hd=" << c.hd << " "
                                    << name_of(c.dtype));
  on_ranks(n, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const Results expected = whole(rank, c), got = ring(rank, *group, c);
    const char* names[] = {"y", "dq", "dk", "dv"};
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(close(got[i], share_of(rank, expected[i], n, rank.rank), tolerance, tolerance))
          << names[i] << " of rank " << rank.rank;
  });
}

TEST(RingAttention, MatchesTheWholeSequence) {
  for (const int n : {1, 2, 3, 4})
    for (const Case& c : {Case{2, 48, 4, 2, 5}, Case{1, 24, 3, 1, 7}, Case{1, 24, 5, 5, 1}, Case{2, 240, 2, 1, 16}})
      expect_whole(c, n, 1e-12);
}

TEST(RingAttention, DocumentsDoNotSeeEachOther) {
  for (const int n : {1, 2, 3, 4}) {
    expect_whole({2, 48, 4, 2, 5, {10, 1, 30, 7}}, n, 1e-12);        // one of a single token, one across all ranks
    expect_whole({1, 48, 3, 1, 8, {1, 1, 1, 44, 1}}, n, 1e-12);      // at both ends
    expect_whole({1, 48, 2, 2, 8, {12, 12, 12, 12}}, n, 1e-12);      // aligned with the chunks of two ranks
    expect_whole({1, 240, 2, 1, 16, {70, 99, 1, 1, 69}}, n, 1e-12);  // several tiles
    expect_whole({1, 48, 2, 1, 8, {48}, DType::f64, 0, true}, n, 1e-12);
    expect_whole({1, 48, 2, 1, 8, {40, 8}, DType::f64, 0, false, true}, n, 1e-12);
  }
}

TEST(RingAttention, WindowsMatchTheWhole) {
  for (const int n : {1, 2, 3, 4})
    for (const int64_t window : {1, 5, 12, 100, 240}) {
      SCOPED_TRACE(window);
      expect_whole({.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .window = window}, n, 1e-12);
      expect_whole({.B = 1, .S = 240, .H = 2, .G = 1, .hd = 16, .documents = {70, 99, 1, 1, 69}, .window = window}, n,
                   1e-12);
    }
  for (const int n : {2, 3})
    expect_whole({.B = 1, .S = 48, .H = 2, .G = 1, .hd = 8, .documents = {40, 8}, .dropout = 0.3, .window = 9}, n,
                 1e-12);
}

// With documents, so that some blocks show no key to a query; each rank's gradient of the sinks covers its own tokens.
TEST(RingAttention, SinksMatchTheWhole) {
  for (const int n : {1, 2, 3})
    for (const int64_t window : {0, 7})
      on_ranks(n, [&](ThreadRank& rank) {
        const auto group = rank.everyone("context");
        const Case c{.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .documents = {10, 1, 30, 7}, .window = window};
        const Tensor sinks = rank.normal({4}, DType::f64, "sinks");
        const ops::AttentionArgs args{0.4, {}, {}, window};
        const auto mine = [&](const Tensor& x) { return share_of(rank, x, n, rank.rank); };
        const auto run_with = [&](bool in_ring) {
          Tape tape(rank.stream);
          std::vector<Var> in;
          for (const Tensor& input : c.inputs(rank)) in.push_back(tape.input(in_ring ? mine(input) : input));
          in.push_back(tape.input(sinks));
          const Var y =
              in_ring ? ops::ring_attention(tape, in[0], in[1], in[2], mine(c.ids(rank)), *group, args, nullptr, in[3])
                      : ops::attention(tape, in[0], in[1], in[2], c.ids(rank), args, in[3]);
          tape.backward({{y, in_ring ? mine(c.dy(rank)) : c.dy(rank)}});
          Results all = {y.value()};
          for (const Var& input : in) all.push_back(tape.gradient(input));
          return all;
        };
        const Results expected = run_with(false), got = run_with(true);
        for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(close(got[i], mine(expected[i]), 1e-12, 1e-12)) << i;
        const Tensor sum = got[4];
        group->all_reduce(rank.stream, sum);
        EXPECT_TRUE(close(sum, expected[4], 1e-12, 1e-12)) << "sinks";
      });
}

TEST(RingAttention, ValuesMayHaveAnotherSize) {
  for (const int n : {1, 2, 4})
    for (const int64_t hd_v : {1, 3, 24})
      for (const bool beside : {false, true}) {
        expect_whole({.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .beside = beside, .hd_v = hd_v}, n, 1e-12);
        expect_whole({.B = 2, .S = 48, .H = 4, .G = 2, .hd = 5, .beside = beside, .window = 7, .hd_v = hd_v}, n, 1e-12);
      }
}

TEST(RingAttention, DropsTheSameProbabilitiesAsTheWhole) {
  for (const int n : {1, 2, 3}) {
    expect_whole({2, 48, 4, 2, 5, {}, DType::f64, 0.4}, n, 1e-12);
    expect_whole({1, 48, 3, 1, 8, {20, 1, 27}, DType::f64, 0.2}, n, 1e-12);
  }
}

TEST(RingAttention, NarrowTypesAgreeUpToRounding) {
  for (const int n : {2, 3, 4}) {
    expect_whole({2, 240, 4, 2, 16, {70, 99, 1, 1, 69}, DType::f32}, n, 2e-5);
    expect_whole({2, 240, 4, 2, 16, {70, 99, 1, 1, 69}, DType::bf16}, n, 6e-2);
  }
}

TEST(RingAttention, GradientsMatchDifferences) {
  Rank rank;
  MetaGroup alone(1, 0, "context");
  const Tensor ids = rank.tensor<int32_t>({1, 5}, {0, 0, 1, 1, 1});
  testing::gradcheck(rank, "ring_attention",
                     [&](Tape& tape, const std::vector<Var>& in) {
                       return std::vector{ops::ring_attention(tape, in[0], in[1], in[2], ids, alone, {0.4})};
                     },
                     {rank.normal({1, 5, 4, 3}, DType::f64, "q"), rank.normal({1, 5, 2, 3}, DType::f64, "k"),
                      rank.normal({1, 5, 2, 3}, DType::f64, "v")});
}

TEST(RingAttention, AcceptsNoTokens) {
  on_ranks(3, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    for (const Shape& shape : {Shape{0, 4, 2, 4}, Shape{2, 0, 2, 4}}) {
      Tape tape(rank.stream);
      const Var q = tape.input(rank.stream.empty(shape, DType::bf16));
      const Tensor ids = rank.stream.empty({shape[0], shape[1]}, DType::i32);
      tape.backward({{ops::ring_attention(tape, q, q, q, ids, *group, {}), {}}});
      EXPECT_EQ(tape.gradient(q).elements(), 0);
    }
  });
}

TEST(RingAttention, RepeatsToTheBit) {
  on_ranks(3, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    const Case c{2, 240, 4, 2, 16, {70, 99, 1, 1, 69}, DType::bf16};
    const Results once = ring(rank, *group, c), again = ring(rank, *group, c);
    for (size_t i = 0; i < once.size(); ++i) EXPECT_EQ(values(once[i]), values(again[i])) << i;
  });
}

TEST(RingAttention, ProcessesHaveTheBitsOfThreads) {
  constexpr int kRanks = 3;
  const Case c{2, 48, 4, 2, 5, {10, 1, 30, 7}, DType::bf16};
  const auto bytes = [&](Rank& rank, Group& group) {
    std::string all;
    for (const Tensor& x : ring(rank, group, c))
      all.append(reinterpret_cast<const char*>(x.raw()), static_cast<size_t>(x.bytes()));
    return all;
  };
  const auto ended = testing::on_processes(kRanks, [&](testing::ProcessRank& rank) {
    const auto group = rank.everyone("context");
    return bytes(rank, *group);
  });
  on_ranks(kRanks, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    EXPECT_EQ(bytes(rank, *group), ended[static_cast<size_t>(rank.rank)].said) << rank.rank;
  });
}

TEST(RingAttention, RanksHaveEqualWork) {
  const Case c{2, 48, 4, 2, 5};
  Rank one;
  whole(one, c);
  for (const int n : {2, 3, 4})
    on_ranks(n, [&](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      ring(rank, *group, c);
      const auto flops = [](Rank& of, const char* kernel) { return of.stream.costs().at("other").at(kernel).flops; };
      for (const char* kernel : {"attention_forward", "attention_backward"})
        EXPECT_EQ(flops(rank, kernel) * n, flops(one, kernel)) << kernel;
    });
}

TEST(RingAttention, SendsTheDocumentedBytes) {
  constexpr int64_t B = 2, S = 48, H = 4, G = 2, hd = 5, hd_v = 7;
  for (const int n : {1, 2, 3, 4})
    for (const bool with_ids : {false, true})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const double elements = B * S * G * (hd + hd_v) / n, ids = with_ids ? 4.0 * B * S / n : 0;
        const double keys = elements * static_cast<double>(size_of(dtype));
        const double expected = (n - 1) * (2 * (keys + ids) + elements * 4);
        on_ranks(n, [&](ThreadRank& rank) {
          const auto group = rank.everyone("context");
          const auto documents = with_ids ? std::vector<int64_t>{20, 28} : std::vector<int64_t>{};
          for (const int64_t window : {0, 3}) {  // windows do not change the calls
            const double before = n > 1 && window > 0 ? group->sent().at("send") : 0;
            ring(rank, *group,
                 {.B = B,
                  .S = S,
                  .H = H,
                  .G = G,
                  .hd = hd,
                  .documents = documents,
                  .dtype = dtype,
                  .window = window,
                  .hd_v = hd_v});
            const double sent = n > 1 ? group->sent().at("send") - before : 0;
            EXPECT_EQ(sent, expected) << n << " ranks";
          }
        });
      }
}

struct Planned {
  double sent, flops;
  int64_t bytes;
};

// Plans on the meta device, with `tokens` on each of n ranks.
Planned planned(int n, int rank, int64_t tokens, int64_t hd_v = 16, int64_t window = 0) {
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  MetaGroup group(n, rank, "context");
  const Shape keys{1, tokens, 2, 16};
  attention_pass(meta,
                 {meta.empty({1, tokens, 4, 16}, DType::bf16), meta.empty(keys, DType::bf16),
                  meta.empty(keys.with(3, hd_v), DType::bf16)},
                 {}, [&](Tape& tape, const std::vector<Var>& in) {
                   return ops::ring_attention(tape, in[0], in[1], in[2], meta.empty({1, tokens}, DType::i32), group,
                                              {.scale = 0.4, .window = window});
                 });
  return {n > 1 ? group.sent().at("send") : 0, meta.flops(), meta.arena().high_water()};
}

TEST(RingAttention, MemoryDoesNotGrowWithTheRanks) {
  const int64_t bytes = planned(4, 0, 512).bytes;  // with fewer ranks, not everything that travels is in flight at once
  for (const int n : {5, 8, 64, 1024}) EXPECT_EQ(planned(n, n / 2, 512).bytes, bytes) << n;
}

TEST(RingAttention, PlansMatchTheRun) {
  on_ranks(4, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    ring(rank, *group, {1, 256, 4, 2, 16, {256}, DType::bf16});
    const Planned plan = planned(4, rank.rank, 64);
    EXPECT_EQ(group->sent().at("send"), plan.sent);
    EXPECT_EQ(rank.stream.flops(), plan.flops);
  });
  on_ranks(4, [&](ThreadRank& rank) {
    const auto group = rank.everyone("context");
    ring(rank, *group,
         {.B = 1,
          .S = 256,
          .H = 4,
          .G = 2,
          .hd = 16,
          .documents = {256},
          .dtype = DType::bf16,
          .window = 45,
          .hd_v = 24});
    const Planned plan = planned(4, rank.rank, 64, 24, 45);
    EXPECT_EQ(group->sent().at("send"), plan.sent);
    EXPECT_EQ(rank.stream.flops(), plan.flops);
  });
}

// Whatever the window, ranks add only the merging of results and the accumulation of gradients to the whole's pairs.
TEST(RingAttention, RanksShareThePairsOfAWindow) {
  const auto flops = [](int n, int64_t window) {
    double sum = 0;
    for (int rank = 0; rank < n; ++rank) sum += planned(n, rank, 256 / n, 24, window).flops;
    return sum;
  };
  for (const int n : {2, 4})
    for (const int64_t window : {1, 20, 64, 200, 256})
      EXPECT_EQ(flops(n, window) - flops(1, window), flops(n, 0) - flops(1, 0)) << n << " ranks, window " << window;
}

TEST(RingAttention, FailuresEndAllRanks) {
  std::mutex mutex;
  int ended = 0;
  const auto world = [&] {
    on_ranks(4, [&](ThreadRank& rank) {
      const auto group = rank.everyone("context");
      require<ConfigError>(rank.rank != 2, "rank 2 fails");
      try {
        ring(rank, *group, {1, 48, 2, 1, 4});
      } catch (const Error&) {
        const std::lock_guard lock(mutex);
        ++ended;
        throw;
      }
    });
  };
  EXPECT_THAT(message_of<ConfigError>(world), HasSubstr("rank 2 fails"));
  EXPECT_EQ(ended, 3);
}

TEST(RingAttention, RefusesRanksWithDifferentShares) {
  EXPECT_THAT(message_of<CommError>([] {
                on_ranks(2, [&](ThreadRank& rank) {
                  const auto group = rank.everyone("context");
                  Tape tape(rank.stream);
                  const Var q = tape.input(rank.normal({1, 8 + 2 * rank.rank, 2, 4}, DType::f32, "q"));
                  ops::ring_attention(tape, q, q, q, {}, *group, {});
                });
              }),
              HasSubstr("axis context"));
}

TEST(RingAttention, ErrorsNameWrongShapes) {
  Rank rank;
  Tape tape(rank.stream);
  MetaGroup group(3, 1, "context");
  const auto message = [&](int64_t S, double p) {
    const Var x = tape.input(rank.normal({1, S, 2, 4}, DType::f32, "x"));
    return message_of<ShapeError>([&] {
      ops::ring_attention(tape, x, x, x, {}, group, {1, testing::dropout_of(rank, p)});
    });
  };
  EXPECT_EQ(message(5, 0),
            "ring_attention over axis context: each of its 3 ranks holds two equal chunks of the sequence, but there "
            "are S=5 tokens here");
  EXPECT_EQ(message(12, 0.1),
            "ring_attention over axis context: dropout needs chunks of a multiple of 4 tokens, got 6");
  EXPECT_EQ(message(8, 2), "ring_attention: p of dropout must be at least 0 and below 1, got 2");
  const Var flat = tape.input(rank.normal({4}, DType::f32, "x"));
  EXPECT_EQ(message_of<ShapeError>([&] { ops::ring_attention(tape, flat, flat, flat, {}, group, {}); }),
            "ring_attention: q must be [B, S, H, hd], got [4]");
}

}  // namespace
}  // namespace witan
