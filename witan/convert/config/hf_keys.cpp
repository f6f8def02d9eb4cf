#include "witan/convert/config/hf_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

// Keys that do not change what a model computes: the origin of a file, settings of transformers' programs, of training
// and of generation.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "auto_map",
                                          "model_type",
                                          "transformers_version",
                                          "transformers.js_config",
                                          "torch_dtype",
                                          "dtype",
                                          "_name_or_path",
                                          "_commit_hash",
                                          "_from_model_config",
                                          "unsloth_version",
                                          "unsloth_fixed",
                                          "is_llama_config",
                                          "tokenizer_class",
                                          "prefix",
                                          "is_decoder",
                                          "is_encoder_decoder",
                                          "tie_encoder_decoder",
                                          "torchscript",
                                          "tf_legacy_loss",
                                          "use_bfloat16",
                                          "use_cache",
                                          "output_router_logits",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "pretraining_tp",
                                          "chunk_size_feed_forward",
                                          "reorder_and_upcast_attn",
                                          "tie_last_hidden_states",
                                          "n_ctx",
                                          "initial_context_length",
                                          "experts_per_token",
                                          "max_window_layers",
                                          "num_nextn_predict_layers",
                                          "num_labels",
                                          "id2label",
                                          "label2id",
                                          "problem_type",
                                          "finetuning_task",
                                          "task_specific_params",
                                          "classifier_dropout",
                                          "summary_type",
                                          "summary_use_proj",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "gradient_checkpointing",
                                          "ep_size",
                                          "seq_aux",
                                          "aux_loss_alpha",
                                          "neftune_noise_alpha",
                                          "max_length",
                                          "min_length",
                                          "max_new_tokens",
                                          "min_new_tokens",
                                          "do_sample",
                                          "early_stopping",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "min_p",
                                          "typical_p",
                                          "epsilon_cutoff",
                                          "eta_cutoff",
                                          "penalty_alpha",
                                          "length_penalty",
                                          "repetition_penalty",
                                          "encoder_repetition_penalty",
                                          "no_repeat_ngram_size",
                                          "encoder_no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "exponential_decay_length_penalty",
                                          "remove_invalid_values",
                                          "renormalize_logits",
                                          "num_return_sequences",
                                          "output_scores",
                                          "output_logits",
                                          "return_dict_in_generate",
                                          "cache_implementation"};

bool is_harmless(std::string_view key) {
  return key.ends_with("_token_id") || key.starts_with("_attn_implementation") ||
         key.starts_with("_experts_implementation") || std::ranges::find(kHarmless, key) != std::end(kHarmless);
}

}  // namespace

HfKeys::HfKeys(const Json& object, std::string where, const Json* defaults)
    : object_(object), defaults_(defaults), where_(std::move(where)) {
  require<ConfigError>(object.is_object(), where_, ": an object is expected, found ", object.type_name());
}

template <class T>
T HfKeys::absent(const char* key, std::optional<T> otherwise) const {
  require<ConfigError>(otherwise.has_value(), where_, ": ", key, " is missing");
  return *std::move(otherwise);
}

const Json* HfKeys::find(const char* key) {
  asked_.insert(key);
  for (const Json* object : {&object_, defaults_}) {
    if (object == nullptr) continue;
    if (const auto found = object->find(key); found != object->end() && !found->is_null()) return &*found;
  }
  return nullptr;
}

bool HfKeys::has(const char* key) const {
  return object_.contains(key) && !is_null(key);
}

bool HfKeys::is_null(const char* key) const {
  return object_.contains(key) && object_.at(key).is_null();
}

bool HfKeys::is_default(const char* key) {
  return !has(key) || (defaults_ != nullptr && defaults_->contains(key) && defaults_->at(key) == *find(key));
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

std::optional<int64_t> HfKeys::nullable_integer(const char* key) {
  if (!find(key) || is_null(key)) return std::nullopt;
  return integer(key);
}

bool HfKeys::truthy(const char* key, std::optional<bool> otherwise) {
  return flag(key, otherwise) && !is_null(key);
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
    if (asked_.contains(key) || empty || is_harmless(key)) continue;
    throw ConfigError(cat(where_, ": ", clipped(key), " = ", clipped(value.dump()),
                          ": Witan does not know what this key asks for, so it cannot tell whether it computes the "
                          "same; remove the key if it is of no concern"));
  }
}

}  // namespace witan
