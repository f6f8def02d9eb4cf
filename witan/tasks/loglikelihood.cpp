#include "witan/tasks/loglikelihood.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "witan/generate/logprobs.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

// Bounds the memory of logits.
constexpr size_t kScoredAtOnce = 256;

int64_t tokens_read(const TokenPair& pair) {
  return static_cast<int64_t>(pair.tokens.size()) - 1;  // the last token is only predicted
}

// The rows of the residual stream that predict tokens of continuations, and these tokens.
struct ScoredRows {
  std::vector<int32_t> rows, targets;
  std::vector<size_t> pairs;  // index of each row's pair
};

class PairScorer {
 public:
  PairScorer(Stream& stream, Transformer& model, std::span<const TokenPair> pairs, const LoglikelihoodOptions& options)
      : stream_(stream), model_(model), pairs_(pairs), repeatable_(options.repeatable), found_(pairs.size()) {
    StateSize size{options.batch_size, 1, options.repeatable && stream.plans_for_cuda()};
    for (const TokenPair& pair : pairs) size.positions = std::max(size.positions, tokens_read(pair));
    states_ = model.make_states(stream, size);
  }

  void score(std::span<const size_t> batch) {
    const kernels::RowProducts by_row(repeatable_);
    const kernels::FewRows few;
    std::vector<kernels::CacheRun> runs;
    std::vector<int32_t> tokens;
    ScoredRows scored;
    for (const size_t number : batch) {
      const TokenPair& pair = pairs_[number];
      const int64_t read = tokens_read(pair);
      for (int64_t at = read - pair.continuation; at < read; ++at) {
        scored.rows.push_back(static_cast<int32_t>(static_cast<int64_t>(tokens.size()) + at));
        scored.targets.push_back(pair.tokens[static_cast<size_t>(at) + 1]);
        scored.pairs.push_back(number);
      }
      runs.push_back({static_cast<int64_t>(runs.size()), 0, read});
      tokens.insert(tokens.end(), pair.tokens.begin(), pair.tokens.end() - 1);
      found_[number] = {0, true};
    }
    ModelInput input = step_input(stream_, std::move(runs), tokens);
    input.where.hints.batch_invariant = repeatable_;
    const Residual x = model_.read(stream_, input, states_);
    for (size_t begin = 0; begin < scored.rows.size(); begin += kScoredAtOnce)
      score_rows_of(x, scored, begin, std::min(kScoredAtOnce, scored.rows.size() - begin));
  }

  std::vector<Loglikelihood> take() { return std::move(found_); }

 private:
  void score_rows_of(const Residual& x, const ScoredRows& scored, size_t begin, size_t count) {
    const int64_t words = model_.config().vocab_size;
    const std::span targets(scored.targets.data() + begin, count);
    const Tensor logits = model_.logits(stream_, x, std::span(scored.rows.data() + begin, count));
    const Tensor ids = stream_.empty({static_cast<int64_t>(count)}, DType::i32);
    kernels::likeliest_tokens(stream_, ids, logits, words);
    const RowScores scores = score_rows(stream_, logits, targets, words, repeatable_);
    if (stream_.is_meta()) return;
    std::vector<int32_t> likeliest(count);
    stream_.read(likeliest.data(), ids);
    for (size_t i = 0; i < count; ++i) {
      Loglikelihood& of = found_[scored.pairs[begin + i]];
      of.nats += static_cast<double>(scores.logprobs[i]);
      of.greedy = of.greedy && likeliest[i] == targets[i];
    }
  }

  Stream& stream_;
  Transformer& model_;
  std::span<const TokenPair> pairs_;
  bool repeatable_;
  std::vector<Loglikelihood> found_;
  SequenceStates states_;
};

}  // namespace

std::vector<Loglikelihood> loglikelihoods(Stream& stream, Transformer& model, std::span<const TokenPair> pairs,
                                          const LoglikelihoodOptions& options,
                                          const std::function<void(size_t done)>& progress) {
  std::vector<size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens_read(pairs[a]) > tokens_read(pairs[b]); });
  PairScorer scorer(stream, model, pairs, options);
  // A dry run runs each shape of batch once.
  std::set<std::vector<std::pair<int64_t, int64_t>>> rehearsed;
  const auto most = static_cast<size_t>(options.batch_size);
  for (size_t begin = 0; begin < order.size(); begin += most) {
    const std::span batch(order.data() + begin, std::min(most, order.size() - begin));
    if (stream.is_meta()) {
      std::vector<std::pair<int64_t, int64_t>> kind;
      for (const size_t number : batch) kind.emplace_back(tokens_read(pairs[number]), pairs[number].continuation);
      if (!rehearsed.insert(kind).second) continue;
    }
    scorer.score(batch);
    if (progress) progress(begin + batch.size());
  }
  return scorer.take();
}

}  // namespace witan
