#include "witan/generate/logprobs.h"

#include <algorithm>
#include <numeric>

#include "witan/base/error.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

std::vector<float> floats_of(Stream& stream, const Tensor& values) {
  std::vector<float> out(static_cast<size_t>(values.elements()));
  if (stream.is_meta()) return out;
  dispatch_floating(values.dtype(), [&]<class A>() {
    std::vector<A> all(out.size());
    stream.read(all.data(), values);
    std::ranges::transform(all, out.begin(), [](A value) { return static_cast<float>(value); });
  });
  return out;
}

}  // namespace

RowScores score_rows(Stream& stream, const Tensor& logits, std::span<const int32_t> targets, int64_t words) {
  const Tensor ids = stream.empty({static_cast<int64_t>(targets.size())}, DType::i32);
  stream.write(ids, targets.data());
  return score_rows(stream, logits, ids, words);
}

RowScores score_rows(Stream& stream, const Tensor& logits, const Tensor& targets, int64_t words) {
  const int64_t n = logits.size(0);
  require<ShapeError>(targets.shape() == Shape{n}, "logprobs: ", n, " rows of logits for ", targets.elements(),
                      " tokens");
  const DType A = accumulator(logits.dtype());
  const Tensor weights = stream.empty({n}, A), loss = stream.empty({1}, A);
  const Tensor both = stream.empty({2, n}, A);  // losses and log-sum-exps, read at once
  dispatch_floating(A, [&]<class T>() {
    const std::vector<T> ones(static_cast<size_t>(n), T(1.0f));
    stream.write(weights, ones.data());
  });
  const auto part = [&](int64_t of) { return both.narrow(0, of, 1).reshape({n}); };
  kernels::cross_entropy_forward(stream, loss, part(0), part(1), logits, targets, weights, words);
  const std::vector<float> found = floats_of(stream, both);
  RowScores scores{{found.begin(), found.begin() + n}, {found.begin() + n, found.end()}};
  for (float& value : scores.logprobs) value = -value;
  return scores;
}

std::vector<TokenLogprob> likeliest(std::span<const float> logits, float lse, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto first = std::min(ids.size(), static_cast<size_t>(count));
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(first);
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<TokenLogprob> top;
  for (auto id = ids.begin(); id != end; ++id) top.push_back({*id, -(lse - logits[static_cast<size_t>(*id)])});
  return top;
}

}  // namespace witan
