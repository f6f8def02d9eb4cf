#include "witan/convert/hf/peft_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/model/frozen.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

constexpr uint64_t kMostConfigBytes = 16 << 20;

Json config_in(const fs::path& folder) {
  const fs::path path = folder / kPeftConfig;
  Json config;
  try {
    config = parse_json(read_file(path, kMostConfigBytes), path.string());
  } catch (const CorruptionError& damaged) {
    throw CheckpointError(cat(damaged.what(), "; download this file again"));
  }
  require<CheckpointError>(config.is_object(), path.string(), ": must be an object, found ", config.type_name());
  return config;
}

bool asks_for_nothing(const Json& value) {
  if (value.is_null() || value == false || value == "none") return true;
  return (value.is_array() || value.is_object() || value.is_string()) && (value.empty() || value == "");
}

// Keys of PEFT's LoraConfig that change the function or the tensors, and that Witan's adapters lack.
constexpr const char* kUnsupported[] = {"bias",
                                        "modules_to_save",
                                        "layers_to_transform",
                                        "layer_replication",
                                        "trainable_token_indices",
                                        "alora_invocation_tokens",
                                        "use_qalora",
                                        "use_bdlora",
                                        "lora_bias",
                                        "arrow_config",
                                        "megatron_config",
                                        "ensure_weight_tying"};

// Initial factors that PEFT subtracts from the base model's weights.
bool changes_base(const Json& init) {
  if (!init.is_string()) return false;
  const std::string name = init.get<std::string>();
  return name.starts_with("pissa") || name == "olora" || name == "corda" || name == "loftq";
}

template <class T>
T checked(const Json& config, const char* key, const std::string& where, T otherwise) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return otherwise;
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(cat(where, ": ", key, " = ", clipped(found->dump()), " has another type than PEFT writes"));
  }
}

// Whether a module, or its entry in a pattern or a list, is what PEFT finds by this name: the end of its path.
bool is_named(const std::string& path, const std::string& name) {
  return path == name || path.ends_with('.' + name);
}

// The module's name in the model: "model.layers.0.self_attn.q_proj".
std::string module_of(const PeftModule& module) {
  std::string name = module.key.substr(std::string("base_model.model.").size());
  name.erase(name.rfind(".lora_"));
  if (name.ends_with(".base_layer")) name.erase(name.rfind('.'));
  if (module.parameter) name += module.path.substr(module.path.rfind('.'));
  return name;
}

// lora_target_modules that an adapter belongs to.
std::vector<std::string> targets_of(const AdapterTensors& adapter) {
  const std::string path = adapter.a.substr(0, adapter.a.rfind('.')), name = path.substr(path.rfind('.') + 1);
  if (name == "gate_up_proj") return {"gate_proj", "up_proj"};
  return {name};
}

}  // namespace

std::string base_of_adapters(const fs::path& folder) {
  return checked<std::string>(config_in(folder), "base_model_name_or_path", (folder / kPeftConfig).string(), "");
}

PeftWeights::PeftWeights(fs::path folder, std::unique_ptr<WeightSource> base, const Architecture& architecture)
    : folder_(std::move(folder)),
      base_(std::move(base)),
      architecture_(architecture.model_type),
      model_(base_->model()) {
  require<ConfigError>(model_.lora_rank == 0, folder_.string(), ": its base model ", base_->where(),
                       " has adapters of its own: merge them first (`witan export --format hf`)");
  read_config();
  const fs::path path = folder_ / kPeftWeights;
  std::error_code error;
  require<CheckpointError>(fs::is_regular_file(path, error), folder_.string(), " has no ", kPeftWeights,
                           ": adapters in a pickle (adapter_model.bin) run code when they are read; save them again "
                           "with Python's peft, which writes safetensors");
  file_ = std::make_unique<MappedFile>(path);
  std::map<std::string, std::string> metadata;
  for (PlacedTensor& one : parse_safetensors(file_->bytes(), path.string(), stored_element_bytes, metadata))
    tensors_.emplace(one.info.name, std::move(one));
  choose_targets(architecture);
  modules_ = std::make_unique<PeftModules>(architecture, model_);
  require<ConfigError>(modules_->refusal().empty(), folder_.string(), ": ", modules_->refusal());
  for (const PeftModule& module : modules_->all()) check_module(module);
  check_left_over();
}

void PeftWeights::read_config() {
  const Json config = config_in(folder_);
  const std::string where = (folder_ / kPeftConfig).string();
  const std::string type = checked<std::string>(config, "peft_type", where, "LORA");
  require<ConfigError>(type == "LORA", where, ": peft_type = ", clipped(type),
                       ": Witan has adapters of type LORA alone");
  for (const char* key : kUnsupported)
    require<ConfigError>(!config.contains(key) || asks_for_nothing(config[key]), where, ": ", key, " = ",
                         clipped(config.value(key, Json()).dump()),
                         ": Witan's adapters have no such thing; merge them into the base model with Python's peft "
                         "(merge_and_unload) and start from that folder");
  require<ConfigError>(!changes_base(config.value("init_lora_weights", Json())), where,
                       ": init_lora_weights = ", clipped(config.value("init_lora_weights", Json()).dump()),
                       " has changed the base model's weights too; save the adapters with Python's peft "
                       "(path_initial_model_for_weight_conversion), which makes plain ones of them");
  try {
    model_.lora_rank = json_integer(config.value("r", Json(8)), 1, 1 << 16);
    const Json ranks = checked(config, "rank_pattern", where, Json::object());
    for (const auto& [module, rank] : ranks.items()) ranks_[module] = json_integer(rank, 1, 1 << 16);
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(cat(where, ": r and the values of rank_pattern must be whole numbers above 0"));
  }
  model_.lora_alpha = checked(config, "lora_alpha", where, 8.0);
  alphas_ = checked(config, "alpha_pattern", where, alphas_);
  require<CheckpointError>(std::isfinite(model_.lora_alpha) && model_.lora_alpha > 0, where,
                           ": lora_alpha = ", model_.lora_alpha, " must be above 0");
  model_.lora_use_rslora = checked(config, "use_rslora", where, false);
  model_.lora_use_dora = checked(config, "use_dora", where, false);
  model_.lora_dropout = 0;
  parameters_ = checked(config, "target_parameters", where, parameters_);
  transposed_ = checked(config, "fan_in_fan_out", where, false);
}

// Whether the folder has an adapter of the module. Parameters of experts are known by target_parameters, since the
// names of their tensors depend on which of them are adapted.
bool PeftWeights::holds(const PeftModule& module) const {
  if (module.parts.front().of.experts)
    return std::ranges::any_of(parameters_, [&](const std::string& name) { return is_named(module_of(module), name); });
  return tensors_.contains(module.a()) || tensors_.contains(module.b());
}

void PeftWeights::choose_targets(const Architecture& architecture) {
  ModelConfig all = model_;
  all.lora_use_dora = false;
  all.lora_target_modules.clear();
  std::set<std::string> present;
  std::map<std::string, std::string> absent;
  const PeftModules possible(architecture, all);
  for (const PeftModule& module : possible.all())
    for (const PeftRows& part : module.parts)
      for (const std::string& target : targets_of(part.of)) {
        if (holds(module))
          present.insert(target);
        else
          absent.emplace(target, module_of(module));
      }
  for (const auto& [target, module] : absent)
    require<CheckpointError>(!present.contains(target), folder_.string(), " has adapters of some matrices ", target,
                             " and none of ", module,
                             ": Witan's lora_target_modules adapt all matrices of a name; merge the adapters into the "
                             "base model with Python's peft (merge_and_unload) and start from that folder");
  std::vector<std::string> targets;
  for (const std::string& name : lora_target_names())
    if (present.contains(name)) targets.push_back(name);
  require<CheckpointError>(!targets.empty(), folder_.string(), " has no adapter of any matrix of ", base_->where(),
                           ": its tensors are named as another model's modules, as \"",
                           tensors_.empty() ? "" : clipped(tensors_.begin()->first), "\"");
  model_.lora_target_modules = fmt::format("{}", fmt::join(targets, ","));
}

const PlacedTensor& PeftWeights::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  require<CheckpointError>(found != tensors_.end(), (folder_ / kPeftWeights).string(), " has no tensor \"", name,
                           "\", which adapters of ", model_.lora_target_modules, " have");
  return found->second;
}

bool PeftWeights::shares_factor(const PeftModule& module) const {
  return module.parts.size() > 1 && tensor(module.a()).info.shape[0] == module.parts.front().of.rank();
}

void PeftWeights::check_module(const PeftModule& module) {
  const std::string where = (folder_ / kPeftWeights).string();
  const auto check = [&](const std::string& name, const Shape& shape) {
    const PlacedTensor& found = tensor(name);
    require<CheckpointError>(found.info.shape == shape, where, ": \"", name, "\" is ", found.info.shape,
                             ", but the base model and r = ", model_.lora_rank, " ask for ", shape);
    const Element element = element_from_name(found.info.dtype, where);
    require<CheckpointError>(size_of(element) > 1 && element != Element::i64 && element != Element::i32, where, ": \"",
                             name, "\" is ", found.info.dtype, ": adapters are floating-point numbers");
  };
  require<CheckpointError>(tensor(module.a()).info.shape.dims() == 2, where, ": \"", module.a(), "\" must be [r, in]");
  const AdapterTensors& of = module.parts.front().of;
  const int64_t rank = shares_factor(module) ? of.rank() : module.rank();
  check(module.a(), {rank * of.matrices(), of.in()});
  check(module.b(), {module.rows, rank * of.matrices()});
  if (model_.lora_use_dora) check(module.magnitudes(), {module.rows});
  require<ConfigError>(!model_.lora_use_dora || module.covered() == module.rows, where, ": ", module_of(module),
                       " has rows that Witan does not adapt, and use_dora = true rescales all of them");
  require<ConfigError>(module.transposed || !transposed_, (folder_ / kPeftConfig).string(),
                       ": fan_in_fan_out = true, and the matrix of ", module_of(module), " is [out, in]");
  check_scale(module, rank);
  check_zeros(module);
  for (size_t part = 0; part < module.parts.size(); ++part) {
    const AdapterTensors& one = module.parts[part].of;
    sources_.emplace(one.a, Source{&module, part, Factor::a, one.a_shape});
    sources_.emplace(one.b, Source{&module, part, Factor::b, one.b_shape});
    if (!one.magnitude.empty())
      sources_.emplace(one.magnitude, Source{&module, part, Factor::magnitude, Shape{one.out()}});
  }
}

// A module's own rank and alpha must leave the scale that lora_rank and lora_alpha give.
void PeftWeights::check_scale(const PeftModule& module, int64_t rank) const {
  const auto own = [&](const auto& pattern, auto otherwise) {
    const auto found =
        std::ranges::find_if(pattern, [&](const auto& entry) { return is_named(module_of(module), entry.first); });
    return found == pattern.end() ? otherwise : static_cast<decltype(otherwise)>(found->second);
  };
  const int64_t said = own(ranks_, model_.lora_rank);
  const std::string where = (folder_ / kPeftConfig).string();
  require<ConfigError>(said == rank, where, ": rank_pattern gives ", module_of(module), " the rank ", said,
                       ", but all adapters of a run have one, r = ", model_.lora_rank);
  LoraConfig of_module;
  of_module.rank = said;
  of_module.alpha = own(alphas_, model_.lora_alpha);
  of_module.rank_stabilized = model_.lora_use_rslora;
  const double expected = lora_of(model_)->scale();
  require<ConfigError>(std::fabs(of_module.scale() - expected) <= 1e-12 * expected, where, ": alpha_pattern gives ",
                       module_of(module), " the scale ", of_module.scale(),
                       ", but all adapters of a run have one, here ", expected);
}

double PeftWeights::value(const PlacedTensor& of, int64_t at) const {
  const Element type = element_from_name(of.info.dtype, of.info.name);
  double value = 0;
  copy_elements(Element::f64, reinterpret_cast<std::byte*>(&value), type, of.bytes.data() + at * size_of(type), 1, 1);
  return value;
}

// Rows that Witan does not adapt, and columns of other parts in a part's rows.
void PeftWeights::check_zeros(const PeftModule& module) const {
  if (module.parts.size() == 1 && module.covered() == module.rows) return;
  const PlacedTensor& b = tensor(module.b());
  const int64_t columns = b.info.shape[1], rank = module.parts.front().of.rank();
  std::vector<int64_t> part_of(static_cast<size_t>(module.rows), -1);
  for (size_t part = 0; part < module.parts.size(); ++part)
    for (int64_t n = 0; n < module.parts[part].of.out(); ++n)
      part_of[static_cast<size_t>(module.parts[part].row(n))] = static_cast<int64_t>(part);
  const bool shared = shares_factor(module) || module.parts.size() == 1;
  for (int64_t row = 0; row < module.rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t part = part_of[static_cast<size_t>(row)];
      if (part >= 0 && (shared || column / rank == part)) continue;
      require<ConfigError>(value(b, row * columns + column) == 0, (folder_ / kPeftWeights).string(), ": \"", module.b(),
                           "\" is not 0 in row ", row, " and column ", column,
                           part < 0 ? ", a row that Witan does not adapt"
                                    : ", where Witan's adapters of the joined matrices have no element");
    }
}

void PeftWeights::check_left_over() const {
  std::set<std::string> used;
  for (const auto& [name, source] : sources_) used.insert(source.tensor());
  for (const auto& [name, one] : tensors_)
    require<CheckpointError>(used.contains(name), (folder_ / kPeftWeights).string(), " holds \"", clipped(name), "\" ",
                             one.info.shape, ", which the model of ", base_->where(), " with adapters of ",
                             model_.lora_target_modules, " has no place for: it would be lost");
}

std::string PeftWeights::Source::tensor() const {
  return factor == Factor::a ? module->a() : factor == Factor::b ? module->b() : module->magnitudes();
}

std::map<std::string, Shape> PeftWeights::weights() const {
  std::map<std::string, Shape> all = base_->weights();
  for (const auto& [name, source] : sources_) all.emplace(name, source.shape);
  return all;
}

void PeftWeights::read(const std::string& name, int64_t first, int64_t count, double* out) {
  const auto found = sources_.find(name);
  if (found == sources_.end()) return base_->read(name, first, count, out);
  if (found->second.factor == Factor::magnitude) return read_magnitudes(found->second, first, count, out);
  read_factor(found->second, first, count, out);
}

void PeftWeights::read_factor(const Source& source, int64_t first, int64_t count, double* out) const {
  const PlacedTensor& from = tensor(source.tensor());
  const Element type = element_from_name(from.info.dtype, from.info.name);
  const auto part = shares_factor(*source.module) ? 0 : static_cast<int64_t>(source.part);
  if (source.factor == Factor::a) {
    const int64_t begin = part * source.shape.elements() + first;
    return copy_elements(Element::f64, reinterpret_cast<std::byte*>(out), type,
                         from.bytes.data() + begin * size_of(type), 1, count);
  }
  const AdapterTensors& of = source.rows().of;
  const int64_t E = of.matrices(), N = of.out(), r = of.rank(), columns = from.info.shape[1];
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t k = i % r, n = i / r % N, e = i / r / N;
    out[i - first] = value(from, source.rows().row(n) * columns + (part * r + k) * E + e);
  }
}

// A change is the magnitude without the norm of the base matrix's row.
void PeftWeights::read_magnitudes(const Source& source, int64_t first, int64_t count, double* out) {
  const PlacedTensor& from = tensor(source.tensor());
  const AdapterTensors& of = source.rows().of;
  std::vector<double> row(static_cast<size_t>(of.in()));
  for (int64_t n = first; n < first + count; ++n) {
    base_->read(of.base, (of.first_row + n) * of.in(), of.in(), row.data());
    double squares = 0;
    for (const double x : row) squares += x * x;
    out[n - first] = value(from, source.rows().row(n)) - std::sqrt(squares);
  }
}

Ledger PeftWeights::ledger() const {
  Ledger ledger;
  ledger.from = "peft";
  ledger.to = "witan";
  ledger.architecture = architecture_;
  std::map<std::string, std::vector<std::string>> went_into;
  for (const auto& [name, source] : sources_) {
    const PlacedTensor& from = tensor(source.tensor());
    went_into[from.info.name].push_back(name);
    ledger.target.push_back({name, from.info.dtype, source.shape, "", {from.info.name}, ""});
  }
  for (const auto& [name, one] : tensors_)
    ledger.source.push_back(
        {name, one.info.dtype, one.info.shape, hash_hex(one.bytes.data(), one.bytes.size()), went_into[name], ""});
  return ledger;
}

}  // namespace witan
