#include "witan/generate/generator.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "witan/base/error.h"

namespace witan {
namespace {

// Positions [past, past + ids.size()) of one sequence.
ModelInput input_of(Stream& stream, std::span<const int32_t> ids, int64_t past) {
  const Shape shape{1, static_cast<int64_t>(ids.size())};
  ModelInput input{stream.empty(shape, DType::i32), {stream.empty(shape, DType::i32), {}}};
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
  stream.write(input.tokens, ids.data());
  stream.write(input.where.positions, positions.data());
  return input;
}

// Logits [1, V] in the compute dtype -> the first `count` as float32.
std::vector<float> to_floats(Stream& stream, const Tensor& logits, int64_t count) {
  std::vector<float> out;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    std::vector<T> all(static_cast<size_t>(logits.elements()));
    stream.read(all.data(), logits);
    for (const T value : std::span(all).first(static_cast<size_t>(count))) out.push_back(static_cast<float>(value));
  });
  return out;
}

void check_length(const Transformer& model, int64_t prompt_tokens, int64_t max_tokens) {
  const int64_t fit = tokens_that_fit(model, prompt_tokens, max_tokens);
  require<ConfigError>(fit == max_tokens, "generate: a prompt of ", prompt_tokens,
                       " tokens and max_tokens = ", max_tokens,
                       " do not fit into max_position_embeddings = ", *model.most_positions(),
                       ", the number of positions that the model has learned: ",
                       fit > 0 ? cat("set max_tokens to at most ", fit) : "shorten the prompt");
}

}  // namespace

std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token) {
  require<DataError>(!prompt.empty(), "generate: the prompt has no tokens");
  const Sampler sampler(options.sampler);
  const auto known = static_cast<int64_t>(prompt.size());
  check_length(model, known, options.max_tokens);
  const int64_t words = model.config().vocab_size;
  const int64_t vocabulary = options.vocab_size > 0 ? std::min(options.vocab_size, words) : words;
  auto caches = model.make_caches(stream, 1, known + options.max_tokens);
  std::vector<int32_t> text;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  for (int64_t position = 0; static_cast<int64_t>(text.size()) < options.max_tokens;) {
    const Tensor logits = model.decode(stream, input_of(stream, next, position), caches);
    position += static_cast<int64_t>(next.size());
    const int32_t token = stream.is_meta() ? 0 : sampler.next(to_floats(stream, logits, vocabulary), position);
    if (token == options.end_of_text && !stream.is_meta()) break;  // a dry run goes the whole way
    text.push_back(token);
    if (on_token) on_token(token);
    next = {token};
  }
  return text;
}

int64_t tokens_that_fit(const Transformer& model, int64_t prompt_tokens, int64_t wanted) {
  const auto most = model.most_positions();
  return most ? std::clamp<int64_t>(*most - prompt_tokens, 0, wanted) : wanted;
}

}  // namespace witan
