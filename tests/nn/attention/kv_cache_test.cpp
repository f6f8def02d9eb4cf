#include <map>

#include "nn/attention/attention_support.h"
#include "support/attention.h"
#include "support/message_of.h"
#include "witan/nn/attention/attention.h"

namespace witan {
namespace {

using kernels::CacheRun;
using testing::Rank;
using testing::values;

constexpr int64_t kHeads = 4, kGroups = 2, kKeyDim = 6, kValueDim = 10;

// A sequence of tokens with queries, keys and values, and the expected results.
struct Sequence {
  Tensor q, k, v;
  std::vector<double> expected;  // [S, H, hd_v]
};

class CachedSteps {
 public:
  CachedSteps(DType dtype, int64_t window, bool sinks, int64_t sequences, int64_t tokens)
      : dtype_(dtype), window_(window), sinks_(sinks ? rank_.normal({kHeads}, dtype, "sinks") : Tensor()) {
    for (int64_t i = 0; i < sequences; ++i) {
      const auto normal = [&](int64_t heads, int64_t dim, const char* name) {
        return rank_.normal({1, tokens, heads, dim}, dtype, cat(name, i));
      };
      Sequence s{normal(kHeads, kKeyDim, "q"), normal(kGroups, kKeyDim, "k"), normal(kGroups, kValueDim, "v"), {}};
      // A cache of its own that is filled at once, by the training kernel.
      const KvCache cache = cache_of({1, tokens});
      s.expected = values(attend_with_cache(rank_.stream, {s.q, s.k, s.v, 0.4, window_, sinks_},
                                            testing::cache_tokens(rank_, {{0, 0, tokens}}), {}, cache));
      sequences_.push_back(std::move(s));
    }
  }

  KvCache cache_of(const StateSize& size) {
    return {rank_.stream, size, {kGroups, kKeyDim, kValueDim, window_}, dtype_};
  }
  // Each run belongs to the sequence with its row's number.
  void expect_step(const KvCache& cache, const std::vector<CacheRun>& runs) {
    const Tensor y = attend_with_cache(rank_.stream,
                                       {side_by_side(runs, &Sequence::q), side_by_side(runs, &Sequence::k),
                                        side_by_side(runs, &Sequence::v), 0.4, window_, sinks_},
                                       testing::cache_tokens(rank_, runs), {}, cache);
    const auto got = values(y);
    auto at = got.begin();
    for (const CacheRun& run : runs) {
      const auto from = sequences_[size_t(run.row)].expected.begin() + run.past * kHeads * kValueDim;
      const auto end = at + run.count * kHeads * kValueDim;
      EXPECT_TRUE(std::equal(at, end, from)) << "row " << run.row << " from position " << run.past;
      at = end;
    }
  }

 private:
  Tensor side_by_side(const std::vector<CacheRun>& runs, Tensor Sequence::*which) {
    int64_t T = 0;
    for (const CacheRun& run : runs) T += run.count;
    const Tensor& like = sequences_[0].*which;
    const Tensor all = rank_.stream.empty(like.shape().with(1, T), dtype_);
    int64_t at = 0;
    for (const CacheRun& run : runs) {
      rank_.stream.copy(all.narrow(1, at, run.count),
                        (sequences_[size_t(run.row)].*which).narrow(1, run.past, run.count));
      at += run.count;
    }
    return all;
  }

  Rank rank_;
  DType dtype_;
  int64_t window_;
  Tensor sinks_;
  std::vector<Sequence> sequences_;
};

// Prompts, single tokens and continued sequences in one step, in rings that wrap around several times: every token gets
// the bits that it gets if its sequence is computed at once.
TEST(AttendWithCache, HasTheBitsOfWholeSequences) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t window : {0, 1, 5, 40})
      for (const bool sinks : {false, true})
        for (const bool all_positions : {false, true}) {
          SCOPED_TRACE(cat(name_of(dtype), ", window ", window, sinks ? ", sinks" : "", all_positions ? ", all" : ""));
          CachedSteps steps(dtype, window, sinks, 3, 160);
          const KvCache cache = steps.cache_of({3, 160, all_positions});
          EXPECT_EQ(cache.keys.size(1), window == 0 || all_positions ? 160 : 2 * window);
          steps.expect_step(cache, {{0, 0, 70}});
          steps.expect_step(cache, {{0, 70, 1}, {2, 0, 1}, {1, 0, 30}});
          steps.expect_step(cache, {{0, 71, 1}, {2, 1, 1}, {1, 30, 1}});
          steps.expect_step(cache, {{2, 2, 90}, {0, 72, 1}, {1, 31, 20}});
          for (int64_t past = 0; past < 60; ++past)
            steps.expect_step(cache, {{1, 51 + past, 1}, {2, 92 + past, 1}, {0, 73 + past, 1}});
        }
}

TEST(AttendWithCache, RefusesSequencesLongerThanTheirRow) {
  CachedSteps steps(DType::f32, 3, false, 2, 20);
  const KvCache cache = steps.cache_of({2, 10});
  EXPECT_EQ(test::message_of<ShapeError>([&] {
              steps.expect_step(cache, {{0, 0, 4}, {1, 5, 6}});
            }),
            "attention: 11 positions in a cache of 10");
}

}  // namespace
}  // namespace witan
