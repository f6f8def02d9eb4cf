#include "witan/generate/generator.h"

#include <algorithm>

namespace witan {

std::vector<Generation> generate(Stream& stream, Transformer& model, std::span<const GenerationRequest> requests,
                                 const GenerationBatch::OnToken& on_token, GenerationMode mode) {
  StateSize size{static_cast<int64_t>(requests.size()), 0};
  for (const GenerationRequest& request : requests) {
    check_request(model, request);  // before memory is asked for
    size.positions = std::max(size.positions, static_cast<int64_t>(request.prompt.size()) + request.options.max_tokens);
  }
  GenerationBatch batch(stream, model, size, mode);
  for (const GenerationRequest& request : requests) batch.admit(request);
  while (!batch.idle()) batch.step(on_token);
  if (stream.is_meta()) batch.rehearse();
  std::vector<Generation> all(requests.size());
  for (auto& [number, generation] : batch.take_finished()) all[number] = std::move(generation);
  return all;
}

std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token,
                              GenerationMode mode) {
  const GenerationRequest request{{prompt.begin(), prompt.end()}, options};
  const auto tell = [&](size_t, const GeneratedToken& token) {
    if (on_token) on_token(token.token);
    return true;
  };
  const std::vector<Generation> generations = generate(stream, model, std::span(&request, 1), tell, mode);
  std::vector<int32_t> text;
  for (const GeneratedToken& token : generations[0].tokens) text.push_back(token.token);
  return text;
}

}  // namespace witan
