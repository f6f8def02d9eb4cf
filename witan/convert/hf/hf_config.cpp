#include "witan/convert/hf/hf_config.h"

#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/convert/model_function.h"

namespace witan {
namespace {

constexpr const char* kTied = "tie_word_embeddings";

// Reads compressed-tensors' configuration. The size of groups follows from the scales.
void read_packed_weights(HfKeys& of, HfModel& out) {
  of.only("format", "pack-quantized", "Witan reads compressed-tensors' weights in pack-quantized");
  of.only("kv_cache_scheme", nullptr, "Witan does not quantise keys and values");
  const Json* groups = of.find("config_groups");
  if (!groups || !groups->is_object() || groups->empty())
    of.refuse("config_groups", "compressed-tensors says there how weights are quantised");
  for (const auto& [name, group] : groups->items()) {
    HfKeys one(group, of.where() + ".config_groups." + name);
    one.only("format", "pack-quantized", "Witan reads compressed-tensors' weights in pack-quantized");
    for (const char* key : {"input_activations", "output_activations"})
      one.only(key, nullptr, "Witan does not quantise activations");
    const Json* weights = one.find("weights");
    if (!weights) one.refuse("weights", "it says how weights are quantised");
    HfKeys args(*weights, one.where() + ".weights");
    args.only("type", "int", "Witan reads whole numbers");
    args.only("symmetric", true, "Witan reads numbers without a zero point");
    args.only("actorder", nullptr, "Witan reads groups of neighbouring elements");
    const int64_t bits = args.integer("num_bits");
    if ((bits != 4 && bits != 8) || (out.packed_bits != 0 && out.packed_bits != bits))
      args.refuse("num_bits", "Witan reads 4 bits or 8, the same in all groups");
    out.packed_bits = static_cast<int>(bits);
  }
}

void read_quantization(HfKeys& keys, HfModel& out) {
  const Json* given = keys.find("quantization_config");
  if (!given) return;
  HfKeys of(*given, keys.where() + ": quantization_config");
  const std::string method = of.text("quant_method", "");
  if (method == "mxfp4") return;
  if (method == "compressed-tensors") return read_packed_weights(of, out);
  if (method != "fp8")
    of.refuse("quant_method",
              "Witan reads weights in mxfp4, in blocks of fp8 and in compressed-tensors' whole numbers");
  of.only("fmt", "e4m3", "Witan reads float8 weights in E4M3");
  const Json* block = of.find("weight_block_size");
  if (!block || !block->is_array() || block->size() != 2 || (*block)[0] != (*block)[1] ||
      !(*block)[0].is_number_integer() || (*block)[0] < 1)
    of.refuse("weight_block_size", "Witan reads float8 weights with a scale for each square block, as [128, 128]");
  out.fp8_block = (*block)[0].get<int64_t>();
}

const Architecture* architecture_of(const Json& json) {
  const auto type = json.find("model_type");
  return type == json.end() || !type->is_string() ? nullptr : find_architecture(type->get_ref<const std::string&>());
}

// The object that describes the text decoder of a vision-language model, with the keys beside it that apply to it.
Json text_decoder_in(const Json& whole) {
  Json text = whole.at(kTextConfig);
  const Architecture* architecture = architecture_of(text);
  const bool tied_in_text =
      architecture != nullptr && architecture->tied_in_text && text.contains(kTied) && text[kTied] == true;
  if (whole.contains(kTied) && !tied_in_text) text[kTied] = whole.at(kTied);
  if (whole.contains("quantization_config") && !text.contains("quantization_config"))
    text["quantization_config"] = whole.at("quantization_config");
  return text;
}

// Writes the keys of the family and those that all architectures share. A model that they cannot represent is found by
// reading the result.
std::string text_of(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                    std::string_view dtype) {
  HfWriter to(model, positions);
  to.out["architectures"] = {architecture.name};
  to.out["model_type"] = architecture.model_type;
  architecture.write(to);
  to.out["vocab_size"] = model.vocab_size;
  to.out["initializer_range"] = model.init_method_std;
  to.out[kTied] = !model.untie_embeddings_and_output_weights;
  to.out["dtype"] = dtype;
  return to.out.dump(2) + "\n";
}

ModelConfig read_back(const Architecture& architecture, const std::string& text) {
  return read_hf_config(text, cat("a model of type ", architecture.model_type)).model;
}

}  // namespace

Json hf_defaults(const Architecture& architecture) {
  Json all = Json::object();
  for (const std::string_view one : architecture.defaults) all.update(Json::parse(one));
  return all;
}

HfModel read_hf_config(std::string_view text, const std::string& file) {
  const Json whole = parse_json(text, file);
  require<ConfigError>(whole.is_object(), file, ": a config.json is an object, found ", whole.type_name());
  const bool nested = whole.contains(kTextConfig) && whole.at(kTextConfig).is_object();
  const Json json = nested ? text_decoder_in(whole) : whole;
  const std::string where = nested ? cat(file, ": ", kTextConfig) : file;
  const auto type = json.find("model_type");
  require<ConfigError>(type != json.end() && type->is_string(), where, ": model_type is missing: it names the kind of ",
                       "model");
  HfModel model;
  model.text_decoder = nested;
  model.architecture = architecture_of(json);
  if (model.architecture == nullptr) {
    const std::string_view lacking = lacking_part(type->get_ref<const std::string&>());
    require<ConfigError>(lacking.empty(), where, ": model_type = ", type->get_ref<const std::string&>(),
                         ": Witan cannot represent models of this type: ", lacking);
    std::string known;
    for (const Architecture& one : architectures()) known += cat(known.empty() ? "" : ", ", one.model_type);
    throw ConfigError(cat(where, ": model_type = ", clipped(type->get<std::string>()),
                          ": Witan cannot represent models of this type; it knows ", known));
  }
  const Json defaults = hf_defaults(*model.architecture);
  HfReader in(json, where, defaults, model);
  read_quantization(in.keys, model);
  model.architecture->read(in);
  in.keys.finish();
  try {
    ModelConfig checked = model.model;
    if (checked.attention.max_position_embeddings == 0) checked.attention.max_position_embeddings = model.positions;
    checked.validate();
  } catch (const ConfigError& error) {
    refuse_hf_model(json, where, error.what());
  }
  return model;
}

std::string write_hf_config(const Architecture& architecture, const ModelConfig& model, int64_t positions,
                            std::string_view dtype) {
  require<ConfigError>(
      model.attention.rotary_percent == 1 || !model.attention.rotates() || architecture.partial_rotation,
      "rotary_percent = ", model.attention.rotary_percent, ": transformers' models of type ", architecture.model_type,
      " rotate every channel of a head, whatever their config.json says, so that the exported model "
      "would be another one; --format megatron writes it as it is");
  std::string text = text_of(architecture, model, positions, dtype);
  const std::vector<std::string> different = differences(read_back(architecture, text), model);
  require<ConfigError>(different.empty(), "a model of type ", architecture.model_type,
                       " cannot be what this one is: ", different.empty() ? "" : different[0]);
  return text;
}

ModelConfig as_architecture(const Architecture& architecture, const ModelConfig& model, int64_t positions) {
  return read_back(architecture, text_of(architecture, model, positions, "float32"));
}

}  // namespace witan
