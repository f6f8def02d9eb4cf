#include "witan/cli/presets.h"

#include <algorithm>
#include <array>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"

// As in report/assets.cpp: the assembler takes the files in as they are.
#define WITAN_EMBED(symbol, file)                                            \
  asm(".section .rodata\n" #symbol "_begin:\n.incbin \"" file "\"\n" #symbol \
      "_end:\n.byte 0\n.previous\n"                                          \
      ".global " #symbol "_begin\n.global " #symbol "_end\n");               \
  extern "C" const char symbol##_begin[];                                    \
  extern "C" const char symbol##_end[];

WITAN_EMBED(witan_preset_deepseek_v2_lite, WITAN_RECIPES "presets/deepseek-v2-lite.toml")
WITAN_EMBED(witan_preset_deepseek_v3, WITAN_RECIPES "presets/deepseek-v3.toml")
WITAN_EMBED(witan_preset_gpt_oss_120b, WITAN_RECIPES "presets/gpt-oss-120b.toml")
WITAN_EMBED(witan_preset_gpt_oss_20b, WITAN_RECIPES "presets/gpt-oss-20b.toml")
WITAN_EMBED(witan_preset_gpt2_124m, WITAN_RECIPES "presets/gpt2-124m.toml")
WITAN_EMBED(witan_preset_llama2_7b, WITAN_RECIPES "presets/llama2-7b.toml")
WITAN_EMBED(witan_preset_llama3_8b, WITAN_RECIPES "presets/llama3-8b.toml")
WITAN_EMBED(witan_preset_megatron_moe_4b, WITAN_RECIPES "reference/moe.toml")
WITAN_EMBED(witan_preset_mixtral_8x22b, WITAN_RECIPES "presets/mixtral-8x22b.toml")
WITAN_EMBED(witan_preset_mixtral_8x7b, WITAN_RECIPES "presets/mixtral-8x7b.toml")
WITAN_EMBED(witan_preset_moonlight_16b_a3b, WITAN_RECIPES "presets/moonlight-16b-a3b.toml")
WITAN_EMBED(witan_preset_nanogpt_dense, WITAN_RECIPES "presets/nanogpt-dense.toml")
WITAN_EMBED(witan_preset_nanogpt_moe, WITAN_RECIPES "presets/nanogpt-moe.toml")
WITAN_EMBED(witan_preset_olmo2_7b, WITAN_RECIPES "presets/olmo2-7b.toml")
WITAN_EMBED(witan_preset_olmo3_7b, WITAN_RECIPES "presets/olmo3-7b.toml")
WITAN_EMBED(witan_preset_olmoe_1b_7b, WITAN_RECIPES "presets/olmoe-1b-7b.toml")
WITAN_EMBED(witan_preset_qwen3_235b_a22b, WITAN_RECIPES "presets/qwen3-235b-a22b.toml")
WITAN_EMBED(witan_preset_qwen3_30b_a3b, WITAN_RECIPES "presets/qwen3-30b-a3b.toml")
WITAN_EMBED(witan_preset_qwen3_8b, WITAN_RECIPES "presets/qwen3-8b.toml")

namespace witan::cli {

std::string_view Preset::summary() const {
  const std::string_view line = toml.substr(0, toml.find('\n'));
  return line.substr(std::min(line.find_first_not_of("# "), line.size()));
}

std::span<const Preset> presets() {
  static const auto all = std::to_array<Preset>({
      {"deepseek-v2-lite", {witan_preset_deepseek_v2_lite_begin, witan_preset_deepseek_v2_lite_end}},
      {"deepseek-v3", {witan_preset_deepseek_v3_begin, witan_preset_deepseek_v3_end}},
      {"gpt-oss-120b", {witan_preset_gpt_oss_120b_begin, witan_preset_gpt_oss_120b_end}},
      {"gpt-oss-20b", {witan_preset_gpt_oss_20b_begin, witan_preset_gpt_oss_20b_end}},
      {"gpt2-124m", {witan_preset_gpt2_124m_begin, witan_preset_gpt2_124m_end}},
      {"llama2-7b", {witan_preset_llama2_7b_begin, witan_preset_llama2_7b_end}},
      {"llama3-8b", {witan_preset_llama3_8b_begin, witan_preset_llama3_8b_end}},
      {"megatron-moe-4b", {witan_preset_megatron_moe_4b_begin, witan_preset_megatron_moe_4b_end}},
      {"mixtral-8x22b", {witan_preset_mixtral_8x22b_begin, witan_preset_mixtral_8x22b_end}},
      {"mixtral-8x7b", {witan_preset_mixtral_8x7b_begin, witan_preset_mixtral_8x7b_end}},
      {"moonlight-16b-a3b", {witan_preset_moonlight_16b_a3b_begin, witan_preset_moonlight_16b_a3b_end}},
      {"nanogpt-dense", {witan_preset_nanogpt_dense_begin, witan_preset_nanogpt_dense_end}},
      {"nanogpt-moe", {witan_preset_nanogpt_moe_begin, witan_preset_nanogpt_moe_end}},
      {"olmo2-7b", {witan_preset_olmo2_7b_begin, witan_preset_olmo2_7b_end}},
      {"olmo3-7b", {witan_preset_olmo3_7b_begin, witan_preset_olmo3_7b_end}},
      {"olmoe-1b-7b", {witan_preset_olmoe_1b_7b_begin, witan_preset_olmoe_1b_7b_end}},
      {"qwen3-235b-a22b", {witan_preset_qwen3_235b_a22b_begin, witan_preset_qwen3_235b_a22b_end}},
      {"qwen3-30b-a3b", {witan_preset_qwen3_30b_a3b_begin, witan_preset_qwen3_30b_a3b_end}},
      {"qwen3-8b", {witan_preset_qwen3_8b_begin, witan_preset_qwen3_8b_end}},
  });
  return all;
}

namespace {

// " (did you mean mixtral-8x22b or mixtral-8x7b?)" of a name that some begin with; of others the nearest one.
std::string preset_meant(std::string_view name, const std::vector<std::string>& names) {
  std::string lower(name), begin_so;
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  for (const std::string& one : names)
    if (!lower.empty() && one.starts_with(lower)) begin_so += (begin_so.empty() ? "" : " or ") + one;
  return begin_so.empty() ? suggestion(lower, names) : cat(" (did you mean ", begin_so, "?)");
}

}  // namespace

const Preset& find_preset(std::string_view name) {
  const auto found = std::ranges::find(presets(), name, &Preset::name);
  if (found != presets().end()) return *found;
  std::vector<std::string> names;
  std::string list;
  for (const Preset& preset : presets()) {
    names.emplace_back(preset.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  throw ConfigError(
      cat("--preset ", clipped(name), ": there is no such preset", preset_meant(name, names), "; there are ", list));
}

std::string describe_presets() {
  std::string text;
  for (const Preset& preset : presets()) text += cat("\n", preset.name, ": ", preset.summary());
  return text;
}

}  // namespace witan::cli
