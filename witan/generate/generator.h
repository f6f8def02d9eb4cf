// Generates text with a trained model: one token at a time, with a KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "witan/generate/generation_batch.h"

namespace witan {

// Continues `prompt` (at least one token). `on_token` gets each new token as it is generated. With expert parallelism
// every rank calls this with the same arguments and gets the same tokens.
// Throws what GenerationBatch::admit() and step() throw.
std::vector<int32_t> generate(Stream& stream, Transformer& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const std::function<void(int32_t)>& on_token = {},
                              GenerationMode mode = {});

// All requests as one batch; each gives what it would give alone, to the bit on a CPU and, on a GPU, where `mode` is
// repeatable. `on_token` may stop a request, by its number in `requests`.
std::vector<Generation> generate(Stream& stream, Transformer& model, std::span<const GenerationRequest> requests,
                                 const GenerationBatch::OnToken& on_token = {}, GenerationMode mode = {});

}  // namespace witan
