#include "witan/convert/hf/hf_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Keys that say nothing of what a model computes, or what only transformers' own programs do.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "auto_map",
                                          "model_type",
                                          "transformers_version",
                                          "torch_dtype",
                                          "dtype",
                                          "_name_or_path",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "decoder_start_token_id",
                                          "sep_token_id",
                                          "use_cache",
                                          "output_router_logits",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "pretraining_tp",
                                          "id2label",
                                          "label2id",
                                          "problem_type",
                                          "task_specific_params",
                                          "summary_type",
                                          "summary_use_proj",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "reorder_and_upcast_attn",
                                          "n_ctx",
                                          "ep_size",
                                          "seq_aux",
                                          "aux_loss_alpha",
                                          "num_nextn_predict_layers",
                                          "initial_context_length",
                                          "experts_per_token",
                                          "max_length",
                                          "chunk_size_feed_forward",
                                          "_from_model_config",
                                          "gradient_checkpointing",
                                          "do_sample",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "num_beams",
                                          "length_penalty",
                                          "repetition_penalty",
                                          "tokenizer_class",
                                          "prefix",
                                          "is_decoder",
                                          "is_encoder_decoder",
                                          "unsloth_version",
                                          "unsloth_fixed"};

}  // namespace

HfKeys::HfKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  require<ConfigError>(object.is_object(), where_, ": an object is expected, found ", object.type_name());
}

template <class T>
T HfKeys::absent(const char* key, std::optional<T> otherwise) const {
  require<ConfigError>(otherwise.has_value(), where_, ": ", key, " is missing");
  return *std::move(otherwise);
}

const Json* HfKeys::find(const char* key) {
  asked_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool HfKeys::has(const char* key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

int64_t HfKeys::integer(const char* key, std::optional<int64_t> otherwise) {
  const Json* value = find(key);
  if (!value) return absent(key, otherwise);
  if (!value->is_number_integer() || *value < 0 || *value > (int64_t{1} << 40))
    refuse(key, "must be a whole number of at least 0");
  return value->get<int64_t>();
}

double HfKeys::number(const char* key, std::optional<double> otherwise) {
  const Json* value = find(key);
  if (!value) return absent(key, otherwise);
  if (!value->is_number()) refuse(key, "must be a number");
  return value->get<double>();
}

bool HfKeys::flag(const char* key, std::optional<bool> otherwise) {
  const Json* value = find(key);
  if (!value) return absent(key, otherwise);
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::string HfKeys::text(const char* key, std::optional<std::string> otherwise) {
  const Json* value = find(key);
  if (!value) return absent(key, std::move(otherwise));
  if (!value->is_string()) refuse(key, "must be a text");
  return value->get<std::string>();
}

void HfKeys::only(const char* key, const Json& value, const char* why) {
  const Json* found = find(key);
  if (found && *found != value) refuse(key, why);
}

void HfKeys::refuse(const char* key, const std::string& why) const {
  const auto found = object_.find(key);
  const std::string value = found == object_.end() ? "absent" : clipped(found->dump());
  throw ConfigError(cat(where_, ": ", key, " = ", value, ": ", why));
}

void HfKeys::finish() const {
  for (const auto& [key, value] : object_.items()) {
    const bool empty = value.is_null() || value == false || value == 0 || value == "" || value.empty();
    if (asked_.contains(key) || empty || std::ranges::find(kHarmless, key) != std::end(kHarmless)) continue;
    throw ConfigError(cat(where_, ": ", clipped(key), " = ", clipped(value.dump()),
                          ": Witan does not know what this key asks for, so it cannot tell whether it computes the "
                          "same; remove the key if it is of no concern"));
  }
}

}  // namespace witan
