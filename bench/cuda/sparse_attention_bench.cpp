// A layer's sparse attention on a GPU, at the shape of DeepSeek-V3.2: an indexer of 64 heads of 128 channels that
// chooses 2048 keys, and 128 heads of 192 channels and values of 128, bfloat16; times beside floors (floors.h), whose
// FLOPs are those of pairs of a token and a key that it sees, or has chosen.
//   cuda_sparse_attention_bench [text that names must contain]
#include "floors.h"
#include "witan/kernels/attention/sparse_attention.h"

namespace witan {
namespace {

using kernels::bytes_of;

constexpr int64_t kIndexHeads = 64, kIndexChannels = 128, kHeads = 128, kChannels = 192, kValues = 128, kChosen = 2048;
constexpr int64_t kMostScores = int64_t{1} << 28;  // at a time

class Bench : public FloorBench {
 public:
  using FloorBench::FloorBench;

  // A row of so many tokens, one document; all tokens' scores or a part's, as in training.
  void shape(int64_t S) {
    const int64_t part = std::min(S, kMostScores / S);
    of_ = cat("1 x ", S, part < S ? cat(", last ", part, " tokens") : "");
    const int64_t K = std::min(kChosen, S), first = S - part;
    const double seen = pairs(first, S, S), chosen_pairs = pairs(0, S, K);
    const kernels::KeyRows all{.rows = 1, .slots = S}, where{.rows = 1, .slots = S, .first = first};
    const Tensor scores = stream_.empty({part, S}, DType::f32), chosen = stream_.empty({S, K}, DType::i32);
    {
      const kernels::IndexInputs in{normal({part, kIndexHeads, kIndexChannels}), normal({part, kIndexHeads}),
                                    normal({1, S, kIndexChannels}), 0.01, where};
      const double flops = 2 * seen * kIndexHeads * kIndexChannels, bytes = bytes_of(in.q, in.w, in.k, scores);
      run("indexer's scores", bytes, flops, [&] { kernels::index_scores(stream_, scores, in); });
      run("choice of keys", bytes_of(scores) + static_cast<double>(4 * part * K), 0,
          [&] { kernels::choose_keys(stream_, chosen.narrow(0, first, part), scores); });
      kernels::index_scores(stream_, scores, in);
      for (int64_t begin = 0; begin < S; begin += part) choose(chosen, begin, part, scores, in);
      kernels::index_scores(stream_, scores, in);
      kernels::keep_chosen(stream_, scores, chosen.narrow(0, first, part));
      const Tensor p = stream_.empty(scores.shape(), DType::f32), divergence = stream_.empty({part}, DType::f32);
      zero(p);
      kernels::index_divergence(stream_, divergence, scores, p, {});
      const kernels::IndexGradients to{stream_.empty_like(in.q), stream_.empty_like(in.w),
                                       stream_.zeros(in.k.shape(), DType::f32)};
      run("gradients of the indexer's scores", bytes + bytes_of(to.dq, to.dk, in.q), 3 * flops,
          [&] { kernels::index_scores_backward(stream_, to, scores, in); });
    }
    const kernels::SparseInputs in{normal({S, kHeads, kChannels}),
                                   normal({1, S, kHeads, kChannels}),
                                   normal({1, S, kHeads, kValues}),
                                   chosen,
                                   all,
                                   0.07};
    const Tensor y = stream_.empty({S, kHeads, kValues}, DType::bf16), dy = normal(y.shape()),
                 lse = stream_.empty({1, kHeads, S}, DType::f32);
    const kernels::SparseMemory memory = kernels::sparse_memory(stream_, in);
    const double bytes = bytes_of(in.q, in.k, in.v, y), each = 2 * chosen_pairs * kHeads;
    run("attention to chosen keys, forward", bytes, each * (kChannels + kValues),
        [&] { kernels::sparse_attention_forward(stream_, y, lse, in, memory); });
    const kernels::SparseGradients to{stream_.empty_like(in.q), stream_.empty_like(in.k), stream_.empty_like(in.v),
                                      stream_.empty({S, kHeads}, DType::f32), memory};
    run("attention to chosen keys, backward", 2 * bytes + bytes_of(y), each * (3 * kChannels + 2 * kValues),
        [&] { kernels::sparse_attention_backward(stream_, to, dy, y, lse, in, {}); });
    kernels::SparseInputs some = in;
    some.q = in.q.narrow(0, first, part), some.chosen = chosen.narrow(0, first, part), some.where = where;
    run("mean of heads' probabilities", bytes_of(some.q, in.k, scores), 2 * pairs(first, S, K) * kHeads * kChannels,
        [&] { kernels::attention_distribution(stream_, scores, lse, some, kHeads); });
  }

 private:
  // Pairs of the tokens [first, end) and the keys that each sees, or K of them at most.
  static double pairs(int64_t first, int64_t end, int64_t K) {
    double sum = 0;
    for (int64_t t = first; t < end; ++t) sum += static_cast<double>(std::min(t + 1, K));
    return sum;
  }
  void choose(const Tensor& chosen, int64_t begin, int64_t part, const Tensor& scores,
              const kernels::IndexInputs& last) {
    kernels::IndexInputs in = last;
    in.where.first = begin;
    const int64_t count = std::min(part, chosen.size(0) - begin);
    in.q = last.q.narrow(0, 0, count), in.w = last.w.narrow(0, 0, count);
    const Tensor some = scores.narrow(0, 0, count);
    kernels::index_scores(stream_, some, in);
    kernels::choose_keys(stream_, chosen.narrow(0, begin, count), some);
  }
  void zero(const Tensor& x) {
    const std::vector<uint8_t> zeros(static_cast<size_t>(x.bytes()));
    stream_.write(x, zeros.data());
  }
};

}  // namespace
}  // namespace witan

int main(int count, char** words) {
  return witan::run_floor_bench(count, words, [](witan::Stream& stream, std::string_view wanted) {
    witan::Bench bench(stream, wanted);
    bench.shape(4096);
    bench.shape(32768);
  });
}
