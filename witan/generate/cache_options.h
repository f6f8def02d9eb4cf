// How generation caches the keys and values of attention, as flags and keys ask for it.
#pragma once

#include <string>

#include "witan/base/config/fields.h"
#include "witan/model/config.h"
#include "witan/nn/mixer/sequence_state.h"

namespace witan {

struct CacheOptions {
  std::string kv_cache_dtype = "auto";     // auto: the model's | fp8_e4m3
  std::string cache_mla_latents = "auto";  // auto | true | false

  Fields fields();
};

// The generation that reads a cache.
struct CacheUse {
  bool repeatable = false;  // tokens must have the bits of the training forward
  bool gpu = false;
  int64_t tensor_ranks = 1;  // which divide the heads
};

// The format of the caches. `auto` latents are cached by GPUs that need not repeat bits, where they are smaller. Throws
// ConfigError for options that the model or its use rules out.
CacheFormat resolve_cache(const CacheOptions& options, const ModelConfig& model, const CacheUse& use);

}  // namespace witan
