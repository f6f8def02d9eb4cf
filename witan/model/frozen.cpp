#include "witan/model/frozen.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

using kernels::WeightFormat;

namespace {

std::vector<std::string> listed(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    std::erase(word, ' ');
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

constexpr const char *kSame = "same", *kDtype = "dtype";

constexpr std::array kFormats = {WeightFormat::nf4, WeightFormat::mxfp4, WeightFormat::int4, WeightFormat::fp8};
constexpr const char *kWords = "_codes", *kScales = "_scales";

WeightFormat format_named(std::string_view name) {
  for (const WeightFormat format : kFormats)
    if (name == kernels::name_of(format)) return format;
  return WeightFormat::none;
}

}  // namespace

std::shared_ptr<const LoraConfig> lora_of(const ModelConfig& config) {
  const std::vector<std::string>& names = lora_target_names();
  std::vector<std::string> targets = listed(config.lora_target_modules);
  for (const std::string& target : targets)
    require<ConfigError>(target == "all" || std::ranges::find(names, target) != names.end(),
                         "lora_target_modules: there is no ", clipped(target), suggestion(target, names),
                         "; there are ", fmt::format("{}", fmt::join(names, ", ")), " and all");
  require<ConfigError>(config.lora_dropout < 1, "lora_dropout = ", config.lora_dropout,
                       " drops everything; use a probability below 1, such as 0.05");
  require<ConfigError>(!config.lora_use_dora || config.lora_dropout == 0,
                       "lora_use_dora = true with lora_dropout = ", config.lora_dropout,
                       ": dropped inputs would need a second product with each matrix; set lora_dropout = 0, or "
                       "lora_use_dora = false");
  require<ConfigError>(config.lora_rank > 0 || targets.empty(), "lora_target_modules = ", config.lora_target_modules,
                       " without adapters: set lora_rank, as to 16");
  if (config.lora_rank == 0) return nullptr;
  if (targets.empty() || std::ranges::find(targets, "all") != targets.end()) targets = names;
  return std::make_shared<const LoraConfig>(LoraConfig{config.lora_rank, config.lora_alpha, config.lora_dropout,
                                                       std::move(targets), config.lora_use_rslora,
                                                       config.lora_use_dora});
}

Freeze::Freeze(const ModelConfig& config)
    : lora_(config.lora_rank > 0),
      indexers_((config.has_sparse_attention() || config.has_compressed_attention()) &&
                config.sparse_attention.dsa_indexer_loss_coeff == 0),
      all_but_indexers_(config.has_sparse_attention() && config.sparse_attention.dsa_dense_warmup),
      patterns_(listed(config.freeze)),
      matrices_(format_named(config.frozen_format)),
      experts_(config.frozen_experts_format == kSame ? matrices_ : format_named(config.frozen_experts_format)),
      head_(config.frozen_head_format == kSame ? matrices_ : format_named(config.frozen_head_format)) {}

bool Freeze::fits(const std::string& pattern, const ParameterSpec& spec) {
  return pattern == name_of(spec.kind) || fnmatch(pattern.c_str(), spec.name.c_str(), 0) == 0;
}

bool Freeze::takes(const ParameterSpec& spec) const {
  if (lora_ && !is_adapter(spec.name)) return true;
  if (is_of_indexer(spec.name) ? indexers_ : all_but_indexers_) return true;
  return std::ranges::any_of(patterns_, [&](const std::string& pattern) { return fits(pattern, spec); });
}

WeightFormat Freeze::format(const ParameterSpec& spec) const {
  const bool matrix = spec.kind == ParameterKind::experts || spec.name.ends_with(".weight");
  if (!matrix || spec.shape.dims() < 2 || spec.tied || !takes(spec)) return WeightFormat::none;
  const WeightFormat wanted = spec.kind == ParameterKind::matrices  ? matrices_
                              : spec.kind == ParameterKind::experts ? experts_
                              : spec.kind == ParameterKind::head    ? head_
                                                                    : WeightFormat::none;
  if (wanted == WeightFormat::none || spec.shape.last() % kernels::traits_of(wanted).group != 0)
    return WeightFormat::none;
  return wanted;
}

CodedNames::CodedNames(const std::string& parameter, WeightFormat format)
    : words(cat(parameter, ".", kernels::name_of(format), kWords)),
      scales(cat(parameter, ".", kernels::name_of(format), kScales)) {}

std::optional<CodedPart> coded_part(std::string_view tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view parameter = tensor.substr(0, dot), last = tensor.substr(dot + 1);
  for (const WeightFormat format : kFormats)
    for (const bool scales : {false, true})
      if (last == cat(kernels::name_of(format), scales ? kScales : kWords))
        return CodedPart{std::string(parameter), format, scales};
  return std::nullopt;
}

bool keeps_codes(const ModelConfig& config) {
  const auto codes = [&](const std::string& key) { return (key == kSame ? config.frozen_format : key) != kDtype; };
  const bool head = config.untie_embeddings_and_output_weights && codes(config.frozen_head_format);
  const bool experts = config.moe.num_experts > 0 && codes(config.frozen_experts_format);
  return Freeze(config).any() && (codes(config.frozen_format) || experts || head);
}

}  // namespace witan
