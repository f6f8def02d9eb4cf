#include <gmock/gmock.h>

#include "support/gradcheck.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "witan/comm/meta.h"
#include "witan/ops/attention/heads.h"

namespace witan {
namespace {

using test::message_of;
using testing::gradcheck;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::Rank;
using testing::TestLeaf;
using testing::ThreadRank;
using testing::values;

constexpr int64_t D = 3, Hq = 4, hd = 4, hd_v = 8;

TEST(GroupWeights, GradientsMatchDifferences) {
  on_ranks(1, [](ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    gradcheck(rank, "gather_group_weights",
              [&](Tape& tape, const std::vector<Var>& in) {
                return std::vector{ops::gather_group_weights(tape, {in[0], in[1], in[2], 1}, *group)};
              },
              {rank.normal({Hq, D}, DType::f64, "q"), rank.normal({hd, D}, DType::f64, "k"),
               rank.normal({hd_v, D}, DType::f64, "v")});
  });
}

// The rows of all groups' weights that a rank holds, and those that it computes with.
void expect_group_rows(int ranks, int64_t groups) {
  SCOPED_TRACE(cat(ranks, " ranks, ", groups, " groups"));
  on_ranks(ranks, [&](ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    const Tensor all_k = rank.normal({groups * hd, D}, DType::f64, "k"),
                 all_v = rank.normal({groups * hd_v, D}, DType::f64, "v");
    const auto part = [&](const Tensor& all) {
      const int64_t rows = all.size(0) / ranks;
      return rank.tensor<double>({rows, D}, values(all.narrow(0, rank.rank * rows, rows)));
    };
    TestLeaf q(rank.stream, rank.own_normal({Hq, D}, DType::f64, "q")), k(rank.stream, part(all_k)),
        v(rank.stream, part(all_v));
    Tape tape(rank.stream);
    const Var w =
        ops::gather_group_weights(tape, {tape.parameter(q), tape.parameter(k), tape.parameter(v), groups}, *group);
    const int64_t own = rank.rank * groups / ranks;
    EXPECT_EQ(values(w.value().narrow(0, 0, Hq)), values(q.value()));
    EXPECT_EQ(values(w.value().narrow(0, Hq, hd)), values(all_k.narrow(0, own * hd, hd)));
    EXPECT_EQ(values(w.value().narrow(0, Hq + hd, hd_v)), values(all_v.narrow(0, own * hd_v, hd_v)));

    // Each rank's gradient of a row is its number + 1, so that a row's sum over the ranks of its group is known.
    const Tensor dw = rank.stream.empty(w.shape(), DType::f64);
    std::fill_n(dw.data<double>(), dw.elements(), rank.rank + 1.0);
    tape.backward({{w, dw}});
    EXPECT_EQ(values(q.gradient()), std::vector<double>(Hq * D, rank.rank + 1.0));
    const int sharers = ranks / static_cast<int>(groups), first = static_cast<int>(own) * sharers;
    const double sum =
        sharers * (first + 1.0) + sharers * (sharers - 1) / 2.0;  // the part belongs to the rank's own group
    EXPECT_EQ(values(k.gradient()), std::vector<double>(static_cast<size_t>(k.value().elements()), sum));
    EXPECT_EQ(values(v.gradient()), std::vector<double>(static_cast<size_t>(v.value().elements()), sum));
  });
}

TEST(GroupWeights, AreGatheredForTheRanksGroupAndGradientsAreSummed) {
  for (const int ranks : {2, 4}) expect_group_rows(ranks, 1);
  expect_group_rows(4, 2);
}

TEST(GroupWeights, GradientsAreSummedInTheAccumulatorDtype) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    Tape tape(rank.stream);
    const auto input = [&](int64_t rows, const char* name) {
      return tape.input(rank.own_normal({rows, D}, DType::bf16, name));
    };
    const Var w =
        ops::gather_group_weights(tape, {input(Hq, "q"), input(hd / 2, "k"), input(hd_v / 2, "v"), 1}, *group);
    EXPECT_EQ(w.dtype(), DType::bf16);
    DType written = DType::i32;
    const Var y = tape.record("use", w.value(), {w}, [&, slot = tape.slot(w)](Backward& b, const Tensor&) {
      b.write(slot, [&](const Tensor& to, Write) {
        written = to.dtype();
        b.stream().zero(to);
      });
    });
    tape.backward({{y, {}}});
    EXPECT_EQ(written, DType::f32);
  });
}

TEST(GroupWeights, RefuseShapesThatDoNotFit) {
  on_ranks(2, [](ThreadRank& rank) {
    const auto group = rank.everyone("tensor");
    Tape tape(rank.stream);
    const auto var = [&](const Shape& shape) { return tape.input(rank.normal(shape, DType::f64, "w")); };
    EXPECT_THAT(message_of<ShapeError>([&] {
                  ops::gather_group_weights(tape, {var({Hq, D}), var({hd, D}), var({hd, D}), 3}, *group);
                }),
                HasSubstr("3 groups do not divide its 2 ranks"));
    EXPECT_THAT(message_of<ShapeError>([&] {
                  ops::gather_group_weights(tape, {var({Hq, D}), var({hd, D + 1}), var({hd, D}), 1}, *group);
                }),
                HasSubstr("parts of keys and values must be [.., 3]"));
  });
}

}  // namespace
}  // namespace witan
