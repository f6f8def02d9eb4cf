#include "witan/train/config/trained_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/model/config.h"
#include "witan/model/frozen.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"

namespace witan {
namespace {

// "layers.*.attention.q_proj.weight", in which a layer's number is a star.
std::string pattern_of(const std::string& name) {
  const auto is_number = [](const std::string& word) {
    return !word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string word = name.substr(begin, end - begin);
    pattern += (pattern.empty() ? "" : ".") + (is_number(word) ? "*" : word);
    begin = end + 1;
  }
  return pattern;
}

std::vector<std::string> patterns_of(const std::vector<ParameterSpec>& specs) {
  std::vector<std::string> patterns;
  for (const ParameterSpec& spec : specs)
    for (const std::string& name : {pattern_of(spec.name), std::string(name_of(spec.kind))})
      if (std::ranges::find(patterns, name) == patterns.end()) patterns.push_back(name);
  return patterns;
}

// Whether the parameter is of an adapter of the module `target`, by the last module in its name.
bool is_adapter_of(const ParameterSpec& spec, const std::string& target, const ModelConfig& model) {
  if (!is_adapter(spec.name)) return false;
  const std::string_view path = std::string_view(spec.name).substr(0, spec.name.rfind('.'));
  const std::string_view module = path.substr(path.rfind('.') + 1);
  const bool of_both = module == "gate_up_proj" && model.lora_rank > 0;  // experts share one adapter
  return module == target || (of_both && (target == "gate_proj" || target == "up_proj"));
}

void check_targets(const ModelConfig& model, const std::vector<ParameterSpec>& specs) {
  const auto lora = lora_of(model);
  if (!lora) return;
  const auto adapted = [&](const std::string& target) {
    return std::ranges::any_of(specs, [&](const ParameterSpec& spec) { return is_adapter_of(spec, target, model); });
  };
  if (lora->targets == lora_target_names()) return;  // the default takes those that the model has
  for (const std::string& target : lora->targets) {
    if (adapted(target)) continue;
    ModelConfig everywhere = model;
    everywhere.lora_target_modules.clear();
    std::vector<std::string> there;
    const std::vector<ParameterSpec> all = all_parameters(everywhere);
    std::ranges::copy_if(lora_target_names(), std::back_inserter(there), [&](const std::string& name) {
      return std::ranges::any_of(all, [&](const ParameterSpec& spec) { return is_adapter_of(spec, name, model); });
    });
    throw ConfigError(
        cat("lora_target_modules: this model has no ", target, "; it has ", fmt::format("{}", fmt::join(there, ", "))));
  }
}

}  // namespace

std::vector<ParameterSpec> all_parameters(const ModelConfig& config) {
  ParallelConfig one;
  one.ranks = one.threads = one.expert_model_parallel_size = 1;
  const Groups groups = make_meta_groups(Layout(one, 1, config.moe.num_experts), 0);
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  const Transformer model(stream, config, 0, groups.model_axes(one));
  std::vector<ParameterSpec> specs;
  for (const Parameter* parameter : model.parameters()) specs.push_back(parameter->spec());
  return specs;
}

std::string describe_parameters(const std::vector<ParameterSpec>& specs) {
  std::map<ParameterKind, std::vector<std::string>> names;
  for (const ParameterSpec& spec : specs) {
    std::vector<std::string>& of_kind = names[spec.kind];
    if (const std::string pattern = pattern_of(spec.name); std::ranges::find(of_kind, pattern) == of_kind.end())
      of_kind.push_back(pattern);
  }
  std::string text;
  for (const auto& [kind, of_kind] : names)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name_of(kind), fmt::join(of_kind, ", "));
  return text;
}

TrainedParameters count_trained(const ModelConfig& model) {
  TrainedParameters counts;
  for (const ParameterSpec& spec : all_parameters(model)) {
    const int64_t elements = spec.shape.elements();
    counts.held += elements;
    if (spec.expert) counts.held_experts += elements;
    if (spec.in_codes()) {
      TrainedParameters::Coded& coded = counts.coded[std::string(kernels::name_of(spec.format))];
      coded.elements += elements;
      coded.bytes += kernels::traits_of(spec.format).bytes(elements);
    }
    if (spec.frozen) continue;
    counts.all += elements;
    if (spec.expert) counts.experts += elements;
  }
  return counts;
}

void check_trained(const ModelConfig& model) {
  const Freeze freeze(model);
  if (!freeze.any()) return;
  const std::vector<ParameterSpec> specs = all_parameters(model);
  check_targets(model, specs);
  for (const std::string& pattern : freeze.patterns())
    require<ConfigError>(
        std::ranges::any_of(specs, [&](const ParameterSpec& spec) { return Freeze::fits(pattern, spec); }),
        "freeze = ", model.freeze, ": ", clipped(pattern), " matches no parameter",
        suggestion(pattern, patterns_of(specs)), "; this model has ", describe_parameters(specs));
  require<ConfigError>(!std::ranges::all_of(specs, &ParameterSpec::frozen), "freeze = ", model.freeze,
                       model.lora_rank > 0 ? " with lora_rank" : "",
                       " freezes every parameter, so that nothing is left to train: leave some out");
}

}  // namespace witan
