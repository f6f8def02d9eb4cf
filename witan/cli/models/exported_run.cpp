#include "witan/cli/models/exported_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/adapters.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/import.h"
#include "witan/convert/model_function.h"
#include "witan/data/corpus/conversations.h"
#include "witan/tokenizer/chat/chat_template.h"
#include "witan/train/config/idle_keys.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

// Keys that determine the kind of model. Messages name them before keys that only give sizes.
constexpr std::string_view kKinds[] = {"multi_latent_attention",
                                       "num_experts",
                                       "position_embedding_type",
                                       "normalization",
                                       "norm_placement",
                                       "swiglu",
                                       "softmax_type",
                                       "qk_layernorm",
                                       "qk_l2_norm",
                                       "qk_layernorm_full_width",
                                       "moe_router_score_function"};

// Returns "hidden_size" for "hidden_size = 16, not 32"; other text unchanged.
std::string_view key_of_difference(std::string_view difference) {
  return difference.substr(0, difference.find(' '));
}

// The differences between two models that do not follow from others: a key that has no effect in one of them differs
// because of the key that decides this. The most important one comes first.
std::vector<std::string> essential(const ModelConfig& a, const ModelConfig& b) {
  std::set<std::string, std::less<>> idle;
  for (const ModelConfig* model : {&a, &b}) {
    RunConfig config;
    config.model = *model;
    for (const IdleKey& one : idle_keys(config)) idle.insert(one.key);
  }
  const std::vector<std::string> all = differences(a, b);
  std::vector<std::string> kept;
  std::ranges::copy_if(all, std::back_inserter(kept),
                       [&](const std::string& one) { return !idle.contains(key_of_difference(one)); });
  if (kept.empty()) kept = all;
  std::ranges::stable_sort(kept, {}, [](const std::string& one) {
    return std::ranges::find(kKinds, key_of_difference(one)) - std::begin(kKinds);
  });
  return kept;
}

// The keys of the model that an architecture's files cannot express, the most important first; none if it fits.
struct Tried {
  std::string_view model_type;
  bool possible = true;  // whether a model of this architecture can have these sizes
  std::vector<std::string> different;
  bool fits_folder = false;  // whether only llama.cpp's files of the architecture cannot express it
};

Tried try_as(const ExportArgs& args, const Architecture& one, const RunConfig& config) {
  ModelConfig model = without_adapters(config.model);
  if (args.without_mtp) model.mtp_num_layers = 0;
  Tried tried{one.model_type, true, {}, false};
  std::vector<std::string>& different = tried.different;
  try {
    different = essential(as_architecture(one, model, config.data.seq_length), model);
  } catch (const ConfigError& error) {
    const std::string why = error.what(), type = cat("a model of type ", one.model_type, ": ");
    different.push_back("nothing, as it cannot hold this model: " +
                        (why.starts_with(type) ? why.substr(type.size()) : why));
    tried.possible = false;
  }
  if (model.mtp_num_layers > 0 && (args.format == "gguf" || !has_mtp(one)))
    different.insert(different.begin(), cat("mtp_num_layers = ", model.mtp_num_layers,
                                            ": it has no modules of multi-token prediction; --without-mtp leaves them "
                                            "out"));
  if (args.format != "gguf" || !different.empty()) return tried;
  tried.fits_folder = true;
  try {
    write_gguf_config(one, model, config.data.seq_length);
  } catch (const ConfigError& error) {
    different.emplace_back(error.what());
  }
  return tried;
}

}  // namespace

std::optional<std::string> ExportedRun::tokenizer() const {
  if (!has_extra_file(checkpoint, "tokenizer.json")) return std::nullopt;
  return read_extra_file(checkpoint, "tokenizer.json");
}

ExportedRun open_exported(const ExportArgs& args, std::FILE* err) {
  RunCheckpoint found = open_run_checkpoint(args.runs_folder, args.run);
  for (const std::string& warning : found.warnings) fmt::print(err, "warning: {}\n", warning);
  ExportedRun run{std::move(found.folder), std::move(found.checkpoint), {}, {}};
  run.config = config_of(run.checkpoint);
  const fs::path ledger = run.folder / kLedgerName;
  std::error_code none;
  if (fs::is_regular_file(ledger, none)) run.ledger = parse_ledger(read_file(ledger), ledger.string());
  return run;
}

const Architecture& architecture_of(const ExportedRun& run, const ExportArgs& args) {
  const std::string asked = !args.architecture.empty() ? args.architecture : run.ledger ? run.ledger->architecture : "";
  if (const Architecture* known = find_architecture(asked)) {  // null for imports from Megatron-LM
    const bool exports_mtp = run.config.model.mtp_num_layers > 0 && !args.without_mtp;
    require<ConfigError>(!exports_mtp || (args.format != "gguf" && has_mtp(*known)), "a model of type ",
                         known->model_type, args.format == "gguf" ? " in a GGUF file" : "",
                         " has no modules of multi-token prediction, and the run has mtp_num_layers = ",
                         run.config.model.mtp_num_layers, ": --without-mtp leaves them out");
    return *known;
  }
  const bool gguf = args.format == "gguf";
  std::vector<Tried> tried;
  for (const Architecture& one : architectures()) {
    if (gguf && one.gguf.name.empty()) continue;
    tried.push_back(try_as(args, one, run.config));
    if (tried.back().different.empty()) return one;
  }
  std::ranges::stable_sort(
      tried, {}, [](const Tried& one) { return std::tuple(!one.possible, !one.fits_folder, one.different.size()); });
  constexpr size_t kNamed = 3;
  const size_t named = std::min(tried.size(), kNamed);
  std::string why;
  for (const Tried& one : std::span(tried).first(named))
    why += cat("\n  ", one.model_type, ": ", one.different.front(),
               one.different.size() > 1 ? cat(" and ", one.different.size() - 1, " more") : "");
  const AttentionConfig& attention = run.config.model.attention;
  if (attention.rotates() && attention.rotary_percent != 1 && args.format == "hf")
    why +=
        cat("\ntransformers' models of these types, phi3 aside, rotate every channel of a head, whatever "
            "their config.json says; --format megatron writes rotary_percent = ",
            attention.rotary_percent);
  throw ConfigError(cat("no architecture that Witan exports as ", gguf ? "GGUF" : "a Hugging Face folder",
                        " is what this model is. What the nearest of ", tried.size(), " would have instead:", why,
                        "\nTrain with keys of one of them, or try --format ", gguf ? "hf" : "megatron",
                        "; --architecture NAME says why another one does not fit"));
}

ChatTokens chat_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer) {
  const auto found = run.config.data.sft && tokenizer ? find_chat_template(run.folder) : std::nullopt;
  if (!found) return {};
  return {found->chat.source(), found->bos_token, found->eos_token, end_of_turn(*found, *tokenizer)};
}

}  // namespace witan::cli
