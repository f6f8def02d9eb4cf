#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/checkpoint/safetensors.h"
#include "witan/convert/adapters.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/hf/peft_modules.h"

namespace witan {
namespace {

class PeftExporter {
 public:
  PeftExporter(CheckpointWeights& weights, const Architecture& architecture, std::string base, const fs::path& folder)
      : weights_(weights), base_(std::move(base)), folder_(folder), modules_(architecture, weights.model()) {
    require<ConfigError>(weights.model().lora_rank > 0, weights.where(),
                         " has no adapters (lora_rank = 0): export it with --format hf");
    require<ConfigError>(modules_.refusal().empty(), modules_.refusal());
    if (weights.model().lora_use_dora) check_magnitudes();
    ledger_.from = "witan";
    ledger_.to = "peft";
    ledger_.architecture = architecture.model_type;
  }

  Ledger run() {
    std::vector<Item> items;
    for (const PeftModule& module : modules_.all()) {
      items.push_back({&module, &AdapterTensors::a, described_factor(module, false)});
      items.push_back({&module, &AdapterTensors::b, described_factor(module, true)});
      if (weights_.model().lora_use_dora)
        items.push_back({&module, &AdapterTensors::magnitude, described_magnitudes(module)});
    }
    std::vector<StoredTensor> order;
    for (const Item& item : items) order.push_back(item.info);
    StoredWriter writer(folder_ / kPeftWeights, order, {{"format", "pt"}});
    for (const Item& item : items) write(writer, item);
    writer.finish();
    write_file_atomically(folder_ / kPeftConfig, config() + "\n");
    return std::move(ledger_);
  }

 private:
  // A tensor of the file, and what of each adapter it holds.
  struct Item {
    const PeftModule* module;
    std::string AdapterTensors::*factor;
    StoredTensor info;
  };

  // PEFT rescales all rows of a module, and has no magnitudes of parameters.
  void check_magnitudes() const {
    for (const PeftModule& module : modules_.all())
      require<ConfigError>(!module.parameter && module.covered() == module.rows,
                           "PEFT's DoRA rescales whole modules, and ", module.path,
                           module.parameter ? " is a parameter of one" : " has rows without an adapter",
                           "; export the merged model (--format hf)");
  }

  void write(StoredWriter& writer, const Item& item) {
    LedgerEntry& to =
        ledger_.target.emplace_back(LedgerEntry{item.info.name, item.info.dtype, item.info.shape, {}, {}, {}});
    for (const PeftRows& part : item.module->parts) {
      const std::string& from = part.of.*item.factor;
      const HeldTensor held = weights_.stored(from);
      to.others.push_back(from);
      ledger_.source.push_back({from,
                                std::string(name_of(held.type)),
                                shape_of(part.of, item.factor),
                                hash_hex(held.bytes.data(), held.bytes.size()),
                                {to.name},
                                ""});
    }
    const std::vector<std::byte> bytes = item.factor == &AdapterTensors::a   ? bytes_of_a(*item.module)
                                         : item.factor == &AdapterTensors::b ? bytes_of_b(*item.module, item.info.bytes)
                                                                             : bytes_of_magnitudes(*item.module);
    to.hash = hash_hex(bytes.data(), bytes.size());
    writer.write(bytes.data(), bytes.size());
    weights_.release();
  }

  static Shape shape_of(const AdapterTensors& of, std::string AdapterTensors::*factor) {
    if (factor == &AdapterTensors::a) return of.a_shape;
    return factor == &AdapterTensors::b ? of.b_shape : Shape{of.out()};
  }

  StoredTensor described_factor(const PeftModule& module, bool is_b) {
    const AdapterTensors& of = module.parts.front().of;
    const Element type = weights_.stored(of.a).type;
    const int64_t rank = module.rank() * module.matrices();
    const Shape shape = is_b ? Shape{module.rows, rank} : Shape{rank, of.in()};
    return {is_b ? module.b() : module.a(), std::string(name_of(type)), shape,
            static_cast<size_t>(shape.elements() * size_of(type))};
  }

  // 16 bits would round magnitudes more than training changes them.
  Element magnitude_type() const { return weights_.model().dtype == "float64" ? Element::f64 : Element::f32; }
  StoredTensor described_magnitudes(const PeftModule& module) const {
    return {module.magnitudes(), std::string(name_of(magnitude_type())), Shape{module.rows},
            static_cast<size_t>(module.rows * size_of(magnitude_type()))};
  }

  std::vector<std::byte> bytes_of_a(const PeftModule& module) {
    std::vector<std::byte> bytes;
    for (const PeftRows& part : module.parts) {
      const HeldTensor held = weights_.stored(part.of.a);
      bytes.insert(bytes.end(), held.bytes.begin(), held.bytes.end());
    }
    return bytes;
  }

  // [rows, r E] of [E, out, r], or of the blocks [out, r] of several parts.
  std::vector<std::byte> bytes_of_b(const PeftModule& module, size_t all) {
    std::vector<std::byte> bytes(all);
    for (size_t i = 0; i < module.parts.size(); ++i) {
      const PeftRows& part = module.parts[i];
      const HeldTensor held = weights_.stored(part.of.b);
      const int64_t E = part.of.matrices(), N = part.of.out(), r = part.of.rank(), columns = module.rank() * E;
      const auto width = static_cast<size_t>(size_of(held.type));
      for (int64_t e = 0; e < E; ++e)
        for (int64_t n = 0; n < N; ++n)
          for (int64_t k = 0; k < r; ++k) {
            const int64_t column = (static_cast<int64_t>(i) * r + k) * E + e;
            std::copy_n(held.bytes.data() + static_cast<size_t>((e * N + n) * r + k) * width, width,
                        bytes.data() + static_cast<size_t>(part.row(n) * columns + column) * width);
          }
    }
    return bytes;
  }

  // [rows]: the norms of the base matrices' rows plus their changes
  std::vector<std::byte> bytes_of_magnitudes(const PeftModule& module) {
    std::vector<double> values(static_cast<size_t>(module.rows));
    for (const PeftRows& part : module.parts) {
      const std::vector<double> own =
          magnitudes_of(part.of, weights_.stored(part.of.base), weights_.stored(part.of.magnitude));
      for (size_t n = 0; n < own.size(); ++n) values[static_cast<size_t>(part.row(static_cast<int64_t>(n)))] = own[n];
    }
    std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(magnitude_type())));
    copy_elements(magnitude_type(), bytes.data(), Element::f64, reinterpret_cast<const std::byte*>(values.data()), 1,
                  module.rows);
    return bytes;
  }

  std::string config() const {
    const ModelConfig& model = weights_.model();
    std::vector<std::string> parameters;  // in the order in which PEFT wraps them
    nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
    for (const PeftModule& module : modules_.all()) {
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
        {"target_modules", modules_.targets()},
        {"bias", "none"},
        {"fan_in_fan_out", std::ranges::any_of(modules_.all(), &PeftModule::transposed)},
        {"use_rslora", model.lora_use_rslora},
        {"use_dora", model.lora_use_dora},
        {"modules_to_save", nullptr},
        {"rank_pattern", ranks},
        {"alpha_pattern", alphas}};
    if (!parameters.empty()) json["target_parameters"] = parameters;
    return json.dump(2);
  }

  CheckpointWeights& weights_;
  const std::string base_;
  const fs::path folder_;
  const PeftModules modules_;
  Ledger ledger_;
};

}  // namespace

Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder) {
  return PeftExporter(weights, architecture, base, folder).run();
}

}  // namespace witan
