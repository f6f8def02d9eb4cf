#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_export.h"

namespace witan {
namespace {

constexpr const char* kPeftPrefix = "base_model.model.";

// The place of an adapter in PEFT.
struct PeftModule {
  std::string target;      // "q_proj" in target_modules, "mlp.experts.down_proj" in target_parameters
  std::string key;         // "base_model.model.model.layers.0.self_attn.q_proj.lora_"
  bool parameter = false;  // in target_parameters
};

std::string last_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}
std::string without_last(const std::string& path) {
  return path.substr(0, path.rfind('.'));
}

bool has_experts(const Architecture& architecture) {
  for (const auto& rules : architecture.rules)
    for (const TensorRule& rule : rules)
      if (rule.storage != ExpertStorage::any) return true;
  return false;
}

class PeftExporter {
 public:
  PeftExporter(CheckpointWeights& weights, const Architecture& architecture, std::string base, const fs::path& folder)
      : weights_(weights),
        architecture_(architecture),
        base_(std::move(base)),
        folder_(folder),
        adapters_(adapters_of(weights.model())) {
    require<ConfigError>(!adapters_.empty(), weights.where(),
                         " has no adapters (lora_rank = 0): export it with --format "
                         "hf");
    for (const AdapterTensors& adapter : adapters_) modules_.push_back(module_of(adapter));
    // If a module has two adapted parameters, PEFT wraps the second around the first.
    for (size_t i = 0; i < modules_.size(); ++i)
      if (wrapped(i)) modules_[i].key.insert(modules_[i].key.rfind("lora_"), "base_layer.");
  }

  Ledger run() {
    Ledger ledger;
    ledger.from = "witan";
    ledger.to = "peft";
    ledger.architecture = architecture_.model_type;
    std::vector<StoredTensor> order;
    for (size_t i = 0; i < adapters_.size(); ++i) {
      add(order, adapters_[i].a, modules_[i].key + "A.weight", shape_of_a(adapters_[i]));
      add(order, adapters_[i].b, modules_[i].key + "B.weight", shape_of_b(adapters_[i]));
    }
    StoredWriter writer(folder_ / "adapter_model.safetensors", order, {{"format", "pt"}});
    for (size_t i = 0; i < adapters_.size(); ++i)
      for (const bool is_b : {false, true}) {
        const std::string& from = is_b ? adapters_[i].b : adapters_[i].a;
        const StoredTensor& to = order[2 * i + (is_b ? 1 : 0)];
        const HeldTensor held = weights_.stored(from);
        const std::vector<std::byte> bytes =
            is_b ? columns_by_rank(adapters_[i], held) : std::vector<std::byte>(held.bytes.begin(), held.bytes.end());
        writer.write(bytes.data(), bytes.size());
        ledger.target.push_back({to.name, to.dtype, to.shape, hash_hex(bytes.data(), bytes.size()), {from}, {}});
        const Shape& shape = is_b ? adapters_[i].b_shape : adapters_[i].a_shape;
        ledger.source.push_back({from, to.dtype, shape, hash_hex(held.bytes.data(), held.bytes.size()), {to.name}, ""});
        weights_.release();
      }
    writer.finish();
    write_file_atomically(folder_ / "adapter_config.json", config() + "\n");
    return ledger;
  }

 private:
  bool wrapped(size_t i) const {
    return modules_[i].parameter && std::ranges::any_of(modules_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                                        modules_.end(), [&](const PeftModule& other) {
                                                          return other.parameter && other.key == modules_[i].key;
                                                        });
  }

  void add(std::vector<StoredTensor>& order, const std::string& name, const std::string& key, const Shape& shape) {
    const HeldTensor held = weights_.stored(name);
    order.push_back({key, std::string(name_of(held.type)), shape, held.bytes.size()});
  }

  static Shape shape_of_a(const AdapterTensors& of) { return {of.matrices() * of.rank(), of.in()}; }
  static Shape shape_of_b(const AdapterTensors& of) { return {of.out(), of.rank() * of.matrices()}; }

  // Transposes [E, out, r] to [out, r, E].
  static std::vector<std::byte> columns_by_rank(const AdapterTensors& of, const HeldTensor& held) {
    const auto E = static_cast<size_t>(of.matrices()), N = static_cast<size_t>(of.out()),
               r = static_cast<size_t>(of.rank()), width = static_cast<size_t>(size_of(held.type));
    std::vector<std::byte> bytes(held.bytes.size());
    for (size_t e = 0; e < E; ++e)
      for (size_t n = 0; n < N; ++n)
        for (size_t k = 0; k < r; ++k)
          std::copy_n(held.bytes.data() + ((e * N + n) * r + k) * width, width,
                      bytes.data() + ((n * r + k) * E + e) * width);
    return bytes;
  }

  // Finds the place of an adapter, such as "layers.L.attention.q_proj.lora_A", by the rule of its matrix.
  PeftModule module_of(const AdapterTensors& adapter) const {
    constexpr std::string_view kLayers = "layers.";
    const size_t dot = adapter.base.find('.', kLayers.size());
    const std::string layer = adapter.base.substr(kLayers.size(), dot - kLayers.size());
    const std::string below = adapter.base.substr(dot + 1);
    const int part = adapter.first_row > 0 ? 1 : 0;
    const std::string form = cat("modules of ", architecture_.name, " hold ", adapter.base,
                                 " in another form than PEFT adapts; export the merged model (--format hf)");
    for (const auto& rules : architecture_.rules)
      for (const TensorRule& rule : rules) {
        const bool storage = adapter.experts ? rule.storage == ExpertStorage::fused : true;
        if (rule.witan != below || !storage || (!adapter.experts && rule.part != part)) continue;
        // Granite's files name experts as linear layers, which transformers' modules are not.
        const bool renamed = adapter.experts && rule.other.ends_with(".weight");
        require<ConfigError>(
            !rule.transposed && !rule.interleaved && rule.joined.empty() && !renamed && !architecture_.renamed_modules,
            form);
        constexpr std::string_view kLayerNumber = "{l}";
        std::string other = cat(architecture_.prefix, rule.other);
        const size_t at = other.find(kLayerNumber);
        std::string in_layer =
            other.substr(at + kLayerNumber.size() + 1);  // "mlp.experts.down_proj", "mlp.up_proj.weight"
        other.replace(at, kLayerNumber.size(), layer);
        const std::string module = without_last(other), key = kPeftPrefix + module + ".lora_";
        if (names_parameter(adapter, in_layer)) return {std::move(in_layer), key, true};
        return {last_of(module), key, false};
      }
    throw ConfigError(form);
  }

  // In a model with experts PEFT takes gate_proj, up_proj and down_proj in target_modules for the experts', as in
  // folders from before these were fused. MLPs beside experts are therefore named as parameters too.
  bool names_parameter(const AdapterTensors& adapter, std::string_view in_layer) const {
    return adapter.experts || (has_experts(architecture_) && in_layer.starts_with("mlp."));
  }

  std::string config() const {
    const ModelConfig& model = weights_.model();
    std::set<std::string> modules;
    std::vector<std::string> parameters;  // in the order in which PEFT wraps them
    for (const PeftModule& module : modules_) {
      if (!module.parameter)
        modules.insert(module.target);
      else if (std::ranges::find(parameters, module.target) == parameters.end())
        parameters.push_back(module.target);
    }
    nlohmann::ordered_json json = {
        {"peft_type", "LORA"},
        {"task_type", "CAUSAL_LM"},
        {"base_model_name_or_path", base_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base_)},
        {"inference_mode", true},
        {"r", model.lora_rank},
        {"lora_alpha", model.lora_alpha},
        {"lora_dropout", model.lora_dropout},
        {"target_modules", modules},
        {"bias", "none"},
        {"fan_in_fan_out", false},
        {"use_rslora", false},
        {"use_dora", false},
        {"modules_to_save", nullptr}};
    if (!parameters.empty()) json["target_parameters"] = parameters;
    return json.dump(2);
  }

  CheckpointWeights& weights_;
  const Architecture& architecture_;
  const std::string base_;
  const fs::path folder_;
  const std::vector<AdapterTensors> adapters_;
  std::vector<PeftModule> modules_;
};

}  // namespace

Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder) {
  return PeftExporter(weights, architecture, base, folder).run();
}

}  // namespace witan
