#include "witan/generate/generator.h"

#include "witan/base/error.h"

namespace witan {
namespace {

// Positions [past, past + ids.size()) of one sequence.
ModelInput input_of(Stream& stream, std::span<const int32_t> ids, int64_t past) {
  const Shape shape{1, static_cast<int64_t>(ids.size())};
  ModelInput input{stream.empty(shape, DType::i32), {stream.empty(shape, DType::i32), {}}};
  if (stream.is_meta()) return input;
  for (size_t i = 0; i < ids.size(); ++i) {
    input.tokens.data<int32_t>()[i] = ids[i];
    input.where.positions.data<int32_t>()[i] = static_cast<int32_t>(past + static_cast<int64_t>(i));
  }
  return input;
}

// Logits [1, V] in the compute dtype -> [V] float32.
std::vector<float> to_floats(const Tensor& logits) {
  std::vector<float> out;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    for (const T value : logits.span<T>()) out.push_back(static_cast<float>(value));
  });
  return out;
}

}  // namespace

std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token) {
  require<DataError>(!prompt.empty(), "generate: the prompt has no tokens");
  const Sampler sampler(options.sampler);
  const auto known = static_cast<int64_t>(prompt.size());
  auto caches = model.make_caches(stream, 1, known + options.max_tokens);
  std::vector<int32_t> text;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  for (int64_t position = 0; static_cast<int64_t>(text.size()) < options.max_tokens;) {
    const Tensor logits = model.decode(stream, input_of(stream, next, position), caches);
    position += static_cast<int64_t>(next.size());
    const int32_t token = stream.is_meta() ? 0 : sampler.next(to_floats(logits), position);
    if (token == options.end_of_text && !stream.is_meta()) break;  // a dry run goes the whole way
    text.push_back(token);
    if (on_token) on_token(token);
    next = {token};
  }
  return text;
}

}  // namespace witan
