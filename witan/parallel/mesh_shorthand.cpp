#include "witan/parallel/mesh_shorthand.h"

#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/comm/mesh.h"

namespace witan {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
constexpr std::pair<Axis, const char*> kExpertKeys[] = {{Axis::expert, "expert_model_parallel_size"},
                                                        {Axis::expert_tensor, "expert_tensor_parallel_size"}};

using Sizes = std::map<Axis, int64_t>;

Axis axis_of(const std::string& name, const std::string& mesh) {
  constexpr Axis kAxes[] = {Axis::replicate, Axis::shard,  Axis::context,      Axis::tensor,
                            Axis::pipeline,  Axis::expert, Axis::expert_tensor};
  std::vector<std::string> names;
  std::string list;
  for (const Axis axis : kAxes) {
    if (name == name_of(axis)) return axis;
    names.emplace_back(name_of(axis));
    list += cat(list.empty() ? "" : ", ", axis);
  }
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"dp", "replicate"},   {"ddp", "replicate"},  {"data", "replicate"}, {"fsdp", "shard"},
      {"zero", "shard"},     {"hsdp", "replicate"}, {"cp", "context"},     {"sequence", "context"},
      {"tp", "tensor"},      {"model", "tensor"},   {"pp", "pipeline"},    {"pipe", "pipeline"},
      {"stage", "pipeline"}, {"ep", "expert"},      {"experts", "expert"}, {"etp", "expert_tensor"}};
  throw ConfigError(cat("mesh = ", clipped(mesh), ": there is no axis ", clipped(name),
                        suggestion(name, names, kOthers), "; there are ", list));
}

int64_t size_of_axis(const std::string& text, Axis axis, const std::string& mesh) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  require<ConfigError>(error == std::errc() && end == text.data() + text.size() && size >= 1 && size <= kMostRanks,
                       "mesh = ", clipped(mesh), ": ", axis, " needs a number of ranks from 1 to ", kMostRanks,
                       ", as in ", axis, "=2, got ", text.empty() ? "nothing" : clipped(text));
  return size;
}

// Blanks around a name or a number are ignored.
std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

Sizes parse(const std::string& mesh) {
  Sizes sizes;
  for (size_t begin = 0; begin <= mesh.size();) {
    const size_t end = std::min(mesh.find(',', begin), mesh.size());
    const std::string part = mesh.substr(begin, end - begin);
    const size_t equals = std::min(part.find('='), part.size());
    const Axis axis = axis_of(trimmed(part.substr(0, equals)), mesh);
    const int64_t size = size_of_axis(trimmed(part.substr(std::min(equals + 1, part.size()))), axis, mesh);
    require<ConfigError>(sizes.emplace(axis, size).second, "mesh = ", clipped(mesh), ": ", axis, " is given twice");
    begin = end + 1;
  }
  return sizes;
}

// Sets keys unless they were given another value.
class Expansion {
 public:
  Expansion(ParallelConfig& config, const std::set<std::string>& given, std::string mesh, std::string file)
      : fields_(config.fields()), given_(given), mesh_(std::move(mesh)), file_(std::move(file)) {}

  void set(const std::string& key, const std::string& text, const std::string& said) {
    for (const Field& field : fields_) {
      if (field.name != key) continue;
      if (given_.contains(key) && value_of(field) != text) refuse(field, said);
      field.set(text, "mesh");
      keys_.insert(key);
    }
  }
  std::set<std::string> keys() && { return std::move(keys_); }

 private:
  static std::string value_of(const Field& field) {
    std::string value = field.text();  // Field::text() has TOML's quotes
    std::erase(value, '"');
    return value;
  }
  [[noreturn]] void refuse(const Field& field, const std::string& said) const {
    const std::string value = value_of(field);
    throw ConfigError(file_.empty() ? cat("--mesh ", mesh_, " implies ", said, ", but ", flag_name(field.name), " ",
                                          value, " is given too: remove one")
                                    : cat(file_, ": mesh = ", mesh_, " implies ", said, ", but ", field.name, " = ",
                                          value, " is set there too: remove one"));
  }

  const Fields fields_;
  const std::set<std::string>& given_;
  const std::string mesh_, file_;
  std::set<std::string> keys_;
};

}  // namespace

std::set<std::string> expand_mesh(ParallelConfig& config, const std::set<std::string>& given, const std::string& file) {
  if (config.mesh.empty()) return {};
  const std::string mesh = std::exchange(config.mesh, "");
  Sizes sizes = parse(mesh);
  const auto size = [&](Axis axis) { return sizes.contains(axis) ? sizes[axis] : 1; };
  const auto says = [&](Axis axis) { return cat(axis, " = ", size(axis)); };
  Expansion expansion(config, given, mesh, file);

  const int64_t replicate = size(Axis::replicate), shard = size(Axis::shard);
  int64_t ranks = replicate * shard;
  const std::pair<Axis, const char*> model_axes[] = {{Axis::tensor, "tensor_model_parallel_size"},
                                                     {Axis::context, "context_parallel_size"},
                                                     {Axis::pipeline, "pipeline_model_parallel_size"}};
  for (const auto& [axis, key] : model_axes) {
    expansion.set(key, std::to_string(size(axis)), says(axis));
    ranks *= size(axis);
    require<ConfigError>(ranks <= kMostRanks, "mesh = ", mesh, " has more than ", kMostRanks, " ranks");
  }
  const std::string& strategy = config.data_parallel_sharding_strategy;
  if (shard > 1 ? strategy == "no_shard" : replicate > 1 && strategy.starts_with("optim"))
    expansion.set("data_parallel_sharding_strategy", "auto", says(Axis::shard));
  if (replicate * shard > 1)
    expansion.set("use_distributed_optimizer", shard > 1 ? "true" : "false", says(Axis::shard));
  expansion.set("num_distributed_optimizer_instances", std::to_string(shard > 1 ? replicate : 1),
                cat(says(Axis::replicate), " beside ", says(Axis::shard)));
  for (const auto& [axis, key] : kExpertKeys)
    if (sizes.contains(axis)) expansion.set(key, std::to_string(size(axis)), says(axis));
  if (!given.contains("ranks") || config.ranks != 0)
    expansion.set("ranks", std::to_string(ranks), cat(ranks, " ranks"));
  else
    config.ranks = ranks;
  return std::move(expansion).keys();
}

std::string_view expert_axis_of(std::string_view key) {
  for (const auto& [axis, name] : kExpertKeys)
    if (key == name) return name_of(axis);
  return "";
}

}  // namespace witan
