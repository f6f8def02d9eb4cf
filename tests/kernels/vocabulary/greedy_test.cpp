#include <cmath>
#include <limits>

#include "support/rank.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::Rank;

std::vector<int32_t> likeliest(const std::vector<float>& logits, int64_t columns, int64_t words, DType dtype) {
  Rank rank;
  const auto rows = static_cast<int64_t>(logits.size()) / columns;
  const Tensor of = rank.tensor({rows, columns}, std::vector<double>(logits.begin(), logits.end()));
  const Tensor in = rank.stream.empty(of.shape(), dtype),
               ids = rank.tensor({rows}, std::vector<int32_t>(static_cast<size_t>(rows), -7));
  dispatch_floating(dtype, [&]<class T>() {
    for (int64_t i = 0; i < of.elements(); ++i) in.data<T>()[i] = T(static_cast<float>(of.data<double>()[i]));
  });
  kernels::likeliest_tokens(rank.stream, ids, in, words);
  return {ids.data<int32_t>(), ids.data<int32_t>() + rows};
}

TEST(LikeliestTokens, TakeTheLowerOfEqualLogits) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_EQ(likeliest({1, 3, 2, 3, -1, -2, -1, -4}, 4, 4, dtype), (std::vector<int32_t>{1, 0}));
    EXPECT_EQ(likeliest({-0.0F, 0, 7, -kInf, -8, 9}, 3, 2, dtype), (std::vector<int32_t>{0, 1}))
        << "zeros are equal, and what is behind the words is not looked at";
    EXPECT_EQ(likeliest({1, kInf, 0, 1, std::nanf(""), 0, -kInf, -kInf, 3}, 3, 2, dtype),
              (std::vector<int32_t>{-1, -1, -1}));
  }
}

// Logits are compared as a sampler reads them.
TEST(LikeliestTokens, AreComparedAsFloat32) {
  Rank rank;
  const Tensor logits = rank.tensor({1, 2}, std::vector<double>{1, 1 + 1e-12});
  const Tensor ids = rank.tensor({1}, std::vector<int32_t>{-7});
  kernels::likeliest_tokens(rank.stream, ids, logits, 2);
  EXPECT_EQ(*ids.data<int32_t>(), 0);
}

}  // namespace
}  // namespace witan
