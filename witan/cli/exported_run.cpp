#include "witan/cli/exported_run.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/adapters.h"
#include "witan/convert/gguf_config.h"
#include "witan/convert/hf_config.h"
#include "witan/convert/import.h"
#include "witan/train/run/load_run.h"

namespace witan::cli {
namespace {

// What the model has otherwise than the architecture's files can say, one sentence each; none: it is one.
std::vector<std::string> differences_in(const ExportArgs& args, const Architecture& one, const RunConfig& config) {
  ModelConfig model = without_adapters(config.model);
  if (args.without_mtp) model.mtp_num_layers = 0;
  std::vector<std::string> different;
  try {
    different = differences_as(one, model, config.data.seq_length);
  } catch (const ConfigError& error) {
    different.emplace_back(error.what());
  }
  if (model.mtp_num_layers > 0 && (args.format == "gguf" || one.model_type != "deepseek_v3"))
    different.insert(different.begin(), cat("mtp_num_layers = ", model.mtp_num_layers,
                                            ": it has no modules of multi-token prediction; --without-mtp leaves them "
                                            "out"));
  if (args.format != "gguf" || !different.empty()) return different;
  try {
    write_gguf_config(one, model, config.data.seq_length);
  } catch (const ConfigError& error) {
    different.emplace_back(error.what());
  }
  return different;
}

}  // namespace

std::optional<std::string> ExportedRun::tokenizer() const {
  const auto& files = checkpoint.manifest.files;
  if (std::ranges::find(files, "tokenizer.json", &Manifest::File::name) == files.end()) return std::nullopt;
  return read_extra_file(checkpoint, "tokenizer.json");
}

ExportedRun open_exported(const ExportArgs& args, std::FILE* err) {
  const fs::path folder = find_run(args.runs_folder, args.run), checkpoints = folder / "checkpoints";
  std::vector<std::string> warnings;
  auto newest = latest_checkpoint(checkpoints, warnings);
  for (const std::string& warning : warnings) fmt::print(err, "warning: {}\n", warning);
  require<CheckpointError>(newest.has_value(), checkpoints.string(),
                           " has no intact checkpoint: train the run further, or restore one from a copy");
  ExportedRun run{folder, std::move(*newest), {}, {}};
  parse_toml(run.config.fields(), read_extra_file(run.checkpoint, "config.toml"),
             (run.checkpoint.folder / "config.toml").string());
  const fs::path ledger = folder / kLedgerName;
  std::error_code none;
  if (fs::is_regular_file(ledger, none)) run.ledger = parse_ledger(read_file(ledger), ledger.string());
  return run;
}

const Architecture& architecture_of(const ExportedRun& run, const ExportArgs& args) {
  const std::string asked = !args.architecture.empty() ? args.architecture : run.ledger ? run.ledger->architecture : "";
  if (const Architecture* known = find_architecture(asked)) {  // null of one imported from Megatron-LM
    const bool has_mtp = run.config.model.mtp_num_layers > 0 && !args.without_mtp;
    require<ConfigError>(!has_mtp || (args.format != "gguf" && known->model_type == "deepseek_v3"), "a model of type ",
                         known->model_type, args.format == "gguf" ? " in a GGUF file" : "",
                         " has no modules of multi-token prediction, and the run has mtp_num_layers = ",
                         run.config.model.mtp_num_layers, ": --without-mtp leaves them out");
    return *known;
  }
  struct Tried {
    size_t differences;
    std::string why;
  };
  std::vector<Tried> tried;
  for (const Architecture& one : architectures()) {
    const std::vector<std::string> different = differences_in(args, one, run.config);
    if (different.empty()) return one;
    tried.push_back({different.size(), cat(one.model_type, ": ", different.front(),
                                           different.size() > 1 ? cat(" and ", different.size() - 1, " more") : "")});
  }
  std::ranges::stable_sort(tried, {}, &Tried::differences);
  std::string why;
  for (const Tried& one : tried) why += cat("\n  ", one.why);
  throw ConfigError(
      cat("no architecture that Witan exports is what this model is. What each has otherwise, the nearest "
          "first:",
          why));
}

}  // namespace witan::cli
