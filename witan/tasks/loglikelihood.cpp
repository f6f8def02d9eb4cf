#include "witan/tasks/loglikelihood.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/generate/logprobs.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan {
namespace {

// bos_token of tokenizer_config.json, a string or an object with the string as "content".
std::string bos_token_in(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  std::error_code none;
  if (!fs::exists(file, none)) return "";
  const Json config = parse_json(read_file(file), file.string());
  if (!config.is_object() || !config.contains("bos_token")) return "";
  const Json& token = config["bos_token"];
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : "";
}

// Python's str.isspace(), for ASCII.
bool is_white(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
}

}  // namespace

PairEncoder::PairEncoder(const Tokenizer& tokenizer, const fs::path& hf, int64_t max_length)
    : tokenizer_(tokenizer), max_length_(max_length), before_(tokenizer.spec().before) {
  const std::string bos = bos_token_in(hf);
  if (!bos.empty()) beginning_ = tokenizer.token_id(bos);
  if (!beginning_ && !before_.empty()) beginning_ = before_.front();
  if (!beginning_) beginning_ = tokenizer.end_of_text();
}

std::vector<int32_t> PairEncoder::encoded(const std::string& text) const {
  std::vector<int32_t> tokens;
  const bool begins = beginning_ && text.starts_with(tokenizer_.token_bytes(*beginning_));
  if (!begins) tokens = before_;
  tokenizer_.encode_to(text, tokens, true);
  return tokens;
}

TokenPair PairEncoder::encode(std::string context, std::string continuation) const {
  TokenPair pair;
  size_t context_tokens = 1;
  if (context.empty()) {
    require<DataError>(beginning_.has_value(),
                       "a question has no context, and the tokenizer no token for the "
                       "beginning or end of a text to put before its answers: write a doc_to_text that is not empty");
    tokenizer_.encode_to(continuation, pair.tokens, true);
    if (pair.tokens.empty() || pair.tokens.front() != *beginning_) pair.tokens.insert(pair.tokens.begin(), *beginning_);
  } else {
    size_t end = context.size();
    while (end > 0 && is_white(context[end - 1])) --end;
    continuation.insert(0, context.substr(end));
    context.resize(end);
    pair.tokens = encoded(context + continuation);
    context_tokens = std::min(encoded(context).size(), pair.tokens.size());
  }
  pair.continuation = static_cast<int64_t>(pair.tokens.size() - context_tokens);
  require<DataError>(pair.continuation > 0, "the answer ", clipped(continuation), " has no tokens of its own after ",
                     clipped(context));
  require<DataError>(pair.continuation <= max_length_, "an answer has ", pair.continuation,
                     " tokens, and the model reads ", max_length_, ": give a larger --max-length or leave the row out");
  // The last token is not read, only predicted.
  const auto most = static_cast<size_t>(max_length_) + 1;
  pair.truncated = pair.tokens.size() > most;
  if (pair.truncated) pair.tokens.erase(pair.tokens.begin(), pair.tokens.end() - static_cast<ptrdiff_t>(most));
  require<DataError>(static_cast<int64_t>(pair.tokens.size()) > pair.continuation,
                     "an answer begins without any token before it: write a doc_to_text that is not only white space");
  return pair;
}

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
    const RowScores scores = score_rows(stream_, logits, targets, words);
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
