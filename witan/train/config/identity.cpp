#include "witan/train/config/identity.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/files/file.h"

namespace witan {
namespace {

// Files and folders, separated by commas, however their paths are spelt.
std::vector<fs::path> files_of(const std::string& list) {
  std::vector<fs::path> files;
  std::istringstream pieces(list);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    std::error_code unknown;
    const fs::path whole = fs::weakly_canonical(fs::absolute(piece, unknown), unknown);
    files.push_back(unknown ? fs::path(piece) : whole);
  }
  return files;
}

bool says_the_same(const Field& before, const Field& now) {
  constexpr std::array<std::string_view, 7> files = {
      "data", "data_path", "train_data_path", "valid_data_path", "test_data_path", "tokenizer", "chat_template"};
  if (before.text() == now.text()) return true;
  return std::ranges::find(files, now.name) != files.end() &&
         files_of(*std::get<std::string*>(before.value)) == files_of(*std::get<std::string*>(now.value));
}

}  // namespace

bool is_identity(const Field& field) {
  constexpr std::array<std::string_view, 4> sections = {"model", "moe", "data", "tokenizer"};
  constexpr std::array<std::string_view, 5> keys = {"micro_batch_size", "global_batch_size", "rampup_batch_size",
                                                    "decrease_batch_size_if_needed", "seed"};
  constexpr std::array<std::string_view, 15> free = {"recompute_granularity",
                                                     "recompute_modules",
                                                     "moe_grouped_gemm",
                                                     "moe_expert_backend",
                                                     "moe_pool_factor",
                                                     "moe_exchange_factor",
                                                     "moe_token_dispatcher_type",
                                                     "hidden_dropout",
                                                     "attention_dropout",
                                                     "lora_dropout",
                                                     "valid_data",
                                                     "moe_shared_expert_overlap",
                                                     "data_cache_path",
                                                     "moe_replicated_experts",
                                                     "fp8_keep_weights"};
  const auto contains = [](const auto& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  return contains(keys, field.name) || (contains(sections, field.section) && !contains(free, field.name));
}

std::vector<std::string> changed_identity(RunConfig before, RunConfig now) {
  std::vector<std::string> changes;
  const Fields was = before.fields(), is = now.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (is_identity(is[i]) && !says_the_same(was[i], is[i]))
      changes.push_back(cat(is[i].name, " = ", is[i].text(), " (was ", was[i].text(), ")"));
  return changes;
}

}  // namespace witan
