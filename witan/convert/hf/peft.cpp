#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/joined_rows.h"
#include "witan/convert/tensor_names.h"

namespace witan {
namespace {

constexpr const char* kPeftPrefix = "base_model.model.";

// An adapter's rows within its module: its row n is the module's row n / own * of_group + first + n % own.
struct PeftRows {
  const AdapterTensors* of = nullptr;
  int64_t first = 0, own = 0, of_group = 0;
};

// A module of transformers, or a parameter of one, that PEFT adapts. It may hold the rows of several of Witan's
// matrices, whose adapters are one there: their A one after the other, and B with a block for each and zeros elsewhere.
struct PeftModule {
  std::string path;        // below its layer: "self_attn.q_proj", "mlp.experts.down_proj", "mlp.up_proj.weight"
  std::string key;         // "base_model.model.model.layers.0.self_attn.q_proj.lora_"
  bool parameter = false;  // in target_parameters
  int64_t rows = 0;
  std::vector<PeftRows> parts = {};  // in the order of their rows

  int64_t rank() const { return parts.front().of->rank() * static_cast<int64_t>(parts.size()); }
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

// The tensor's name in transformers' modules, where {l} stands for the layer; of fused experts, the parameter's name.
std::string module_name(const Architecture& architecture, const TensorRule& rule) {
  std::string name = cat(architecture.prefix, rule.other);
  for (const auto& [in_folders, in_modules] : architecture.modules)
    if (const size_t at = name.find(in_folders); at != std::string::npos)
      name.replace(at, in_folders.size(), in_modules);
  return name;
}

constexpr std::string_view kLayerNumber = "{l}";
std::string below_layer(const std::string& name) {
  const size_t at = name.find(kLayerNumber);
  return at == std::string::npos ? name : name.substr(at + kLayerNumber.size() + 1);
}

class PeftExporter {
 public:
  PeftExporter(CheckpointWeights& weights, const Architecture& architecture, std::string base, const fs::path& folder)
      : weights_(weights),
        architecture_(architecture),
        base_(std::move(base)),
        folder_(folder),
        tensors_(tensors_of(weights.model())),
        rows_(rows_by_name(tensors_)),
        adapters_(adapters_of(weights.model())) {
    require<ConfigError>(!adapters_.empty(), weights.where(),
                         " has no adapters (lora_rank = 0): export it with --format "
                         "hf");
    for (const AdapterTensors& adapter : adapters_) place(adapter);
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
    for (const PeftModule& module : modules_)
      for (const bool is_b : {false, true}) order.push_back(described(module, is_b));
    StoredWriter writer(folder_ / "adapter_model.safetensors", order, {{"format", "pt"}});
    for (size_t i = 0; i < order.size(); ++i) {
      const PeftModule& module = modules_[i / 2];
      const bool is_b = i % 2 == 1;
      LedgerEntry& to =
          ledger.target.emplace_back(LedgerEntry{order[i].name, order[i].dtype, order[i].shape, {}, {}, {}});
      for (const PeftRows& part : module.parts) {
        const std::string& from = is_b ? part.of->b : part.of->a;
        const HeldTensor held = weights_.stored(from);
        to.others.push_back(from);
        ledger.source.push_back({from,
                                 to.dtype,
                                 is_b ? part.of->b_shape : part.of->a_shape,
                                 hash_hex(held.bytes.data(), held.bytes.size()),
                                 {to.name},
                                 ""});
      }
      const std::vector<std::byte> bytes = is_b ? bytes_of_b(module, order[i].bytes) : bytes_of_a(module);
      to.hash = hash_hex(bytes.data(), bytes.size());
      writer.write(bytes.data(), bytes.size());
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

  StoredTensor described(const PeftModule& module, bool is_b) {
    const AdapterTensors& of = *module.parts.front().of;
    const std::string dtype(name_of(weights_.stored(of.a).type));
    const int64_t width = size_of(weights_.stored(of.a).type), rank = module.rank() * of.matrices();
    const Shape shape = is_b ? Shape{module.rows, rank} : Shape{rank, of.in()};
    return {module.key + (is_b ? "B.weight" : "A.weight"), dtype, shape, static_cast<size_t>(shape.elements() * width)};
  }

  std::vector<std::byte> bytes_of_a(const PeftModule& module) {
    std::vector<std::byte> bytes;
    for (const PeftRows& part : module.parts) {
      const HeldTensor held = weights_.stored(part.of->a);
      bytes.insert(bytes.end(), held.bytes.begin(), held.bytes.end());
    }
    return bytes;
  }

  // [rows, r E] of [E, out, r], or of the blocks [out, r] of several parts.
  std::vector<std::byte> bytes_of_b(const PeftModule& module, size_t all) {
    std::vector<std::byte> bytes(all);
    for (size_t i = 0; i < module.parts.size(); ++i) {
      const PeftRows& part = module.parts[i];
      const HeldTensor held = weights_.stored(part.of->b);
      const int64_t E = part.of->matrices(), N = part.of->out(), r = part.of->rank(), columns = module.rank() * E;
      const auto width = static_cast<size_t>(size_of(held.type));
      for (int64_t e = 0; e < E; ++e)
        for (int64_t n = 0; n < N; ++n)
          for (int64_t k = 0; k < r; ++k) {
            const int64_t row = n / part.own * part.of_group + part.first + n % part.own;
            const int64_t column = (static_cast<int64_t>(i) * r + k) * E + e;
            std::copy_n(held.bytes.data() + static_cast<size_t>((e * N + n) * r + k) * width, width,
                        bytes.data() + static_cast<size_t>(row * columns + column) * width);
          }
    }
    return bytes;
  }

  // The rule of the adapted matrix, or of its adapted half (gate or up); null if transformers has no such module.
  const TensorRule* rule_of(const AdapterTensors& adapter, std::string_view below) const {
    for (const auto& rules : architecture_.rules)
      for (const TensorRule& rule : rules) {
        if (rule.witan != below) continue;
        if (rule.parts > 1 && rule.part != (adapter.first_row > 0 ? 1 : 0)) continue;
        if (!adapter.experts) return &rule;
        if (rule.storage != ExpertStorage::fused && rule.storage != ExpertStorage::single) continue;
        const std::string name = module_name(architecture_, rule);
        // Modules hold all experts of a layer as one parameter, whose name has neither {e} nor ".weight". A rule whose
        // name still has one of them is of files whose modules are not known (Architecture::modules).
        if (name.find("{e}") == std::string::npos && !name.ends_with(".weight")) return &rule;
      }
    return nullptr;
  }

  // Adds an adapter, such as "layers.L.attention.q_proj.lora_A", to its module, by the rule of its matrix.
  void place(const AdapterTensors& adapter) {
    constexpr std::string_view kLayers = "layers.";
    std::string layer, below = adapter.base;  // no layer: the matrix is the model's
    if (below.starts_with(kLayers)) {
      const size_t dot = below.find('.', kLayers.size());
      layer = below.substr(kLayers.size(), dot - kLayers.size());
      below = below.substr(dot + 1);
    }
    const TensorRule* const rule = rule_of(adapter, below);
    require<ConfigError>(rule != nullptr && !rule->interleaved && !(adapter.experts && rule->transposed), "modules of ",
                         architecture_.name, " hold ", adapter.base,
                         " in another form than PEFT adapts; export the merged model (--format hf)");
    std::string name = module_name(architecture_, *rule);
    std::string path = below_layer(name);
    if (const size_t at = name.find(kLayerNumber); at != std::string::npos)
      name.replace(at, kLayerNumber.size(), layer);
    PeftModule module{path, kPeftPrefix + without_last(name) + ".lora_", names_parameter(adapter, path)};
    if (!module.parameter) module.path = without_last(path);
    require<ConfigError>(architecture_.peft_refuses.empty() || last_of(module.path) != architecture_.peft_refuses,
                         "PEFT refuses adapters of ", architecture_.peft_refuses, " in models of ", architecture_.name,
                         ", and ", adapter.base,
                         " is one; export the merged model (--format hf), or train with lora_target_modules without ",
                         last_of(without_last(adapter.base)));
    transposed_ = transposed_ || rule->transposed;
    const int parts = adapter.experts ? 1 : rule->parts;  // modules hold gate and up of experts in one parameter
    const JoinedRows joined(adapter.base, rule->witan, rows_.at(adapter.base) / parts, rule->joined,
                            group_count(rule->groups, weights_.model()), rows_);
    module.rows = joined.all;
    const PeftRows rows{&adapter, joined.first + (parts == 1 ? adapter.first_row : 0), joined.own, joined.of_group()};
    auto found = std::ranges::find_if(
        modules_, [&](const PeftModule& one) { return one.key == module.key && one.path == module.path; });
    if (found == modules_.end()) found = modules_.insert(modules_.end(), std::move(module));
    found->parts.insert(std::ranges::upper_bound(found->parts, rows.first, {}, &PeftRows::first), rows);
  }

  // In a model with experts PEFT takes gate_proj, up_proj and down_proj in target_modules for the experts', as in
  // folders from before these were fused. MLPs beside experts are therefore named as parameters too.
  bool names_parameter(const AdapterTensors& adapter, std::string_view in_layer) const {
    return adapter.experts || (has_experts(architecture_) && in_layer.starts_with("mlp."));
  }

  // PEFT adapts every module whose name ends with a target: the last part of the name, unless matrices without
  // adapters have the same.
  std::set<std::string> target_modules() const {
    std::set<std::string> adapted, targets;
    for (const PeftModule& module : modules_)
      if (!module.parameter) adapted.insert(module.path);
    std::set<std::string> ambiguous;
    for (const ModelTensor& tensor : tensors_)
      for (const auto& rules : architecture_.rules)
        for (const TensorRule& rule : rules) {
          if (tensor.experts || !tensor.name.ends_with(cat('.', rule.witan)) ||
              rule.other.find(kLayerNumber) == std::string_view::npos)
            continue;
          const std::string path = without_last(below_layer(module_name(architecture_, rule)));
          if (!adapted.contains(path)) ambiguous.insert(last_of(path));
        }
    for (const std::string& path : adapted) targets.insert(ambiguous.contains(last_of(path)) ? path : last_of(path));
    return targets;
  }

  std::string config() const {
    const ModelConfig& model = weights_.model();
    std::vector<std::string> parameters;  // in the order in which PEFT wraps them
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
    for (const PeftModule& module : modules_) {
      if (module.parameter && std::ranges::find(parameters, module.path) == parameters.end())
        parameters.push_back(module.path);
      if (module.parts.size() == 1) continue;
      ranks[module.path] = module.rank();
      // PEFT divides by the rank, or its root, which is larger by the number of parts.
      const auto parts = static_cast<double>(module.parts.size());
      alphas[module.path] = model.lora_alpha * (model.lora_use_rslora ? std::sqrt(parts) : parts);
    }
    nlohmann::ordered_json json = {
        {"peft_type", "LORA"},
        {"task_type", "CAUSAL_LM"},
        {"base_model_name_or_path", base_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base_)},
        {"inference_mode", true},
        {"r", model.lora_rank},
        {"lora_alpha", model.lora_alpha},
        {"lora_dropout", model.lora_dropout},
        {"target_modules", target_modules()},
        {"bias", "none"},
        {"fan_in_fan_out", transposed_},
        {"use_rslora", model.lora_use_rslora},
        {"use_dora", false},
        {"modules_to_save", nullptr},
        {"rank_pattern", ranks},
        {"alpha_pattern", alphas}};
    if (!parameters.empty()) json["target_parameters"] = parameters;
    return json.dump(2);
  }

  CheckpointWeights& weights_;
  const Architecture& architecture_;
  const std::string base_;
  const fs::path folder_;
  const std::vector<ModelTensor> tensors_;
  const RowsByName rows_;
  const std::vector<AdapterTensors> adapters_;
  std::vector<PeftModule> modules_;
  bool transposed_ = false;  // matrices are [in, out], as in GPT-2
};

}  // namespace

Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder) {
  return PeftExporter(weights, architecture, base, folder).run();
}

}  // namespace witan
