#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "witan/base/error.h"
#include "witan/convert/config/hf_model.h"

namespace witan {
namespace {

using Out = nlohmann::ordered_json;

constexpr const char *kJoined = "rope_parameters", *kScaling = "rope_scaling";
constexpr const char *kFull = "full_attention", *kWindowed = "sliding_attention";
constexpr const char* kPartial = "partial_rotary_factor";
constexpr const char* kWholeHeads =
    "transformers' models of this type rotate every channel of a head whatever this key says, or fail; remove it if "
    "the model was trained like that";

// YaRN's multiplier of sines and cosines grows linearly in this.
double yarn_logarithm(double factor) {
  return 0.1 * std::log(std::max(factor, 1.0));
}

// The mscale for which Witan multiplies sines and cosines by this factor. It is rounded to 12 digits, so that the
// mscale from which a file's factor was computed is recovered exactly.
double mscale_of(HfKeys& scaling, double attention_factor) {
  const double per_mscale = yarn_logarithm(scaling.number("factor"));
  if (attention_factor < 1 || (per_mscale == 0 && attention_factor != 1))
    scaling.refuse("attention_factor", "Witan multiplies sines and cosines by 0.1 mscale ln factor + 1, at least 1");
  if (per_mscale == 0) return 1;
  constexpr double kDigits = 1e12;
  return std::round((attention_factor - 1) / per_mscale * kDigits) / kDigits;
}

void read_magnitude(HfKeys& scaling, const HfSettings& to) {
  const double mscale = scaling.number("mscale", 0.0), all_dim = scaling.number("mscale_all_dim", 0.0);
  if (scaling.has("attention_factor")) {
    if (all_dim != 0)
      scaling.refuse("attention_factor", "Witan computes this factor from factor, mscale and mscale_all_dim");
    to.set("mscale", mscale_of(scaling, scaling.number("attention_factor")));
  } else if (mscale != 0 && all_dim != 0) {
    to.set("mscale", mscale);
    to.set("mscale_all_dim", all_dim);
  } else if (all_dim != 0) {
    scaling.refuse("mscale_all_dim", "Witan knows it only together with mscale");
  }
}

// Returns Witan's name for this kind of YaRN.
const char* read_yarn(HfKeys& scaling, const HfSettings& to) {
  to.set("beta_fast", scaling.number("beta_fast", 32.0));
  to.set("beta_slow", scaling.number("beta_slow", 1.0));
  read_magnitude(scaling, to);
  return scaling.truthy("truncate", true) ? "yarn" : "yarn_unrounded";
}

std::string longrope_list(HfKeys& scaling, const char* key) {
  const Json* list = scaling.find(key);
  if (!list || !list->is_array() || !std::ranges::all_of(*list, [](const Json& one) { return one.is_number(); }))
    scaling.refuse(key, "longrope needs a list of numbers");
  Json numbers = Json::array();
  for (const Json& one : *list) numbers.push_back(one.get<double>());
  return numbers.dump();
}

void read_longrope(HfKeys& scaling, const HfSettings& to, int64_t original, int64_t positions) {
  const double longer = static_cast<double>(positions) / static_cast<double>(std::max<int64_t>(original, 1));
  to.set("rotary_scaling_factor", std::max(scaling.number("factor", longer), 1.0));
  to.set("rope_short_factors", longrope_list(scaling, "short_factor"));
  to.set("rope_long_factors", longrope_list(scaling, "long_factor"));
  if (scaling.has("attention_factor")) to.set("rope_attention_factor", scaling.number("attention_factor"));
}

bool rotates_in_part(HfRope kind) {
  return kind == HfRope::partial || kind == HfRope::partial_sections;
}

// Keys outside the object, which apply if the object lacks them.
struct RopeBeside {
  double theta = 0;
  int64_t positions = 0;  // max_position_embeddings
  int64_t original = 0;   // original_max_position_embeddings; 0 if absent
  HfRope kind = HfRope::plain;
  double share = 1;  // of a head's channels that rotate, if the kind is partial and the object does not say
};

// Reads "dynamic" with a factor alpha. transformers' HunYuan raises the base by it, and passes over all other keys.
void read_ntk_alpha(HfKeys& scaling, const HfSettings& to, double theta) {
  const double alpha = scaling.number("alpha");
  const auto channels = static_cast<double>(to.model().attention.qk_head_dim(to.model().hidden_size));
  if (!(alpha > 0) || channels <= 2) scaling.refuse("alpha", "it multiplies the base, and must be above 0");
  to.set("rotary_base", theta * std::pow(alpha, channels / (channels - 2)));
  for (const char* key : {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) scaling.find(key);
}

// Reads one object: rope_parameters, a part of it, or rope_scaling.
void read_object(HfKeys scaling, const HfSettings& to, const RopeBeside& defaults) {
  to.set("rotary_base", scaling.number("rope_theta", defaults.theta));
  if (rotates_in_part(defaults.kind))
    to.set("rotary_percent", scaling.number(kPartial, defaults.share));
  else
    scaling.only(kPartial, 1.0, kWholeHeads);
  std::string type = scaling.text("type", "default");
  type = scaling.text("rope_type", type);
  if (type == "su") type = "longrope";  // in Phi-3's first files
  if (defaults.kind == HfRope::sections || defaults.kind == HfRope::partial_sections) {
    for (const char* key : {"mrope_section", "mrope_interleaved"}) scaling.find(key);
    if (type == "mrope") type = "default";
  }
  int64_t original = scaling.integer("original_max_position_embeddings", defaults.positions);
  if (defaults.original > 0) original = defaults.original;  // transformers prefers it
  if (type == "dynamic") original = defaults.positions;     // frequencies change beyond them
  if (type == "dynamic" && defaults.kind == HfRope::ntk_alpha && scaling.number("alpha", 0.0) != 0) {
    read_ntk_alpha(scaling, to, scaling.number("rope_theta", defaults.theta));
    return scaling.finish();
  }
  if (type == "linear" || type == "llama3" || type == "yarn" || type == "dynamic") {
    to.set("rotary_scaling_factor", scaling.number("factor"));
  } else if (type == "longrope") {
    read_longrope(scaling, to, original, defaults.positions);
  } else if (type != "default") {
    scaling.refuse(scaling.has("rope_type") ? "rope_type" : "type",
                   "Witan scales rotary positions as linear, llama3, yarn, longrope or dynamic do");
  }
  if (type != "linear" && type != "default") to.set("original_max_position_embeddings", original);
  if (type == "llama3") {
    to.set("rope_low_freq_factor", scaling.number("low_freq_factor"));
    to.set("rope_high_freq_factor", scaling.number("high_freq_factor"));
  }
  if (type == "yarn") type = read_yarn(scaling, to);
  if (type != "default") to.set("rope_scaling_type", type);
  scaling.finish();
}

// The object of one type of layers, with the keys beside it.
struct LayerTypeRope {
  const Json* object;  // null if absent
  std::string where;
  RopeBeside defaults;

  void read(const HfSettings& to) const {
    static const Json kPlain = Json::object();
    read_object({object ? *object : kPlain, where}, to, defaults);
  }
  // The settings of this object in a model with default settings.
  AttentionConfig alone(const HfSettings& of) const {
    ModelConfig model;
    read(of.of(model));
    return model.attention;
  }
};

bool stretches_alike(AttentionConfig a, AttentionConfig b) {
  a.rotary_base = b.rotary_base;
  return std::ranges::equal(a.fields(), b.fields(), {}, &Field::text, &Field::text);
}

// Sets how layers with a window differ from the others, whose settings have been read.
void read_windowed(const LayerTypeRope& windowed, const LayerTypeRope& full, const HfSettings& to) {
  const AttentionConfig own = windowed.alone(to), others = full.alone(to);
  if (own.rotary_base != others.rotary_base) to.set("window_rotary_base", own.rotary_base);
  if (stretches_alike(own, others)) return;
  require<ConfigError>(own.rope_scaling_type == "none", windowed.where,
                       ": frequencies of layers with a window are stretched in Witan as those of ", full.where,
                       " or not at all");
  to.set("window_rope_scaling", false);
}

void write_yarn(Out& rope, const AttentionConfig& attention) {
  rope["beta_fast"] = attention.beta_fast;
  rope["beta_slow"] = attention.beta_slow;
  if (attention.mscale_all_dim != 0) {
    rope["mscale"] = attention.mscale;
    rope["mscale_all_dim"] = attention.mscale_all_dim;
  } else if (attention.mscale != 1) {
    rope["attention_factor"] = attention.mscale * yarn_logarithm(attention.rotary_scaling_factor) + 1;
  }
  if (attention.rope_scaling_type != "yarn") rope["truncate"] = false;
}

}  // namespace

// In transformers a rope_scaling that is not empty overrides rope_parameters.
void read_hf_rope(HfKeys& keys, const HfSettings& to, int64_t positions, HfRope kind) {
  const Json *scaling = keys.find(kScaling), *joined = keys.find(kJoined);
  const bool scaled = scaling && !scaling->empty();
  const double theta = keys.number("rope_theta");
  const int64_t original = keys.integer("original_max_position_embeddings", 0);
  const bool partial = rotates_in_part(kind);
  const double share = partial ? keys.number(kPartial, 1.0) : 1;
  if (!partial) keys.only(kPartial, 1.0, kWholeHeads);
  const LayerTypeRope rope{scaled ? scaling : joined,
                           cat(keys.where(), ": ", scaled ? kScaling : kJoined),
                           {theta, positions, original, kind, share}};
  rope.read(to);
}

void read_hf_rope_of_layer_types(HfKeys& keys, const HfSettings& to, int64_t positions,
                                 const std::vector<bool>& windowed, std::optional<double> windowed_theta) {
  const RopeBeside beside{keys.number("rope_theta"), positions};
  const RopeBeside beside_windowed{windowed_theta.value_or(beside.theta), positions};
  keys.only(kPartial, 1.0, kWholeHeads);
  LayerTypeRope of_full{nullptr, cat(keys.where(), ": ", kScaling), beside};
  LayerTypeRope of_windowed{nullptr, cat(keys.where(), ": layers with a window"), beside_windowed};
  if (const Json* joined = keys.find(kJoined)) {
    HfKeys types(*joined, cat(keys.where(), ": ", kJoined));
    of_full = {types.find(kFull), cat(types.where(), ": ", kFull), beside};
    of_windowed = {types.find(kWindowed), cat(types.where(), ": ", kWindowed), beside_windowed};
    if (!of_full.object && !of_windowed.object)
      keys.refuse(kJoined, "this architecture has them for each type of layers, full_attention and sliding_attention");
    types.finish();
  } else {
    of_full.object = keys.find(kScaling);
    if (of_full.object && of_full.object->contains("type") && !of_full.object->contains("rope_type"))
      keys.refuse(kScaling, "name it by rope_type: transformers passes over type in models of this type");
  }
  const bool own_theta = windowed_theta || (of_windowed.object && of_windowed.object->contains("rope_theta"));
  if (!own_theta && !keys.is_default("rope_theta") && std::ranges::find(windowed, true) != windowed.end())
    keys.refuse("rope_theta",
                "transformers takes it for all layers before v5, and for those with full attention alone "
                "since then: give it in rope_parameters for each of the two types");
  const bool some_full = std::ranges::find(windowed, false) != windowed.end();
  (some_full ? of_full : of_windowed).read(to);
  if (some_full && std::ranges::find(windowed, true) != windowed.end()) read_windowed(of_windowed, of_full, to);
  require<ConfigError>(to.model().attention.rope_scaling_type != "yarn_unrounded", keys.where(),
                       ": truncate = false: models of this type round YaRN's bounds, whatever it says");
}

Out hf_rope(const AttentionConfig& attention) {
  Out rope = {{"rope_theta", attention.rotary_base}, {"rope_type", "default"}};
  const std::string& type = attention.rope_scaling_type;
  if (type == "none") return rope;
  const bool yarn = type.starts_with("yarn");
  rope["rope_type"] = yarn ? "yarn" : type;
  rope["factor"] = attention.rotary_scaling_factor;
  if (type != "linear" && type != "dynamic")
    rope["original_max_position_embeddings"] = attention.original_max_position_embeddings;
  if (type == "llama3") {
    rope["low_freq_factor"] = attention.rope_low_freq_factor;
    rope["high_freq_factor"] = attention.rope_high_freq_factor;
  }
  if (yarn) write_yarn(rope, attention);
  if (type == "longrope") {
    rope["short_factor"] = read_rope_factors("rope_short_factors", attention.rope_short_factors);
    rope["long_factor"] = read_rope_factors("rope_long_factors", attention.rope_long_factors);
    if (attention.rope_attention_factor > 0) rope["attention_factor"] = attention.rope_attention_factor;
  }
  return rope;
}

Out hf_rope_of_layer_types(const AttentionConfig& attention) {
  return {{kFull, hf_rope(attention)}, {kWindowed, hf_rope(attention.of_windowed_layers())}};
}

}  // namespace witan
