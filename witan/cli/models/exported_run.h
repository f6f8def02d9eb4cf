// A run that `witan export` writes for other programs, its architecture, and the files next to its weights.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/store.h"
#include "witan/convert/hf/hf_export.h"
#include "witan/convert/ledger.h"
#include "witan/convert/tensor_names.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan::cli {

struct ExportArgs {
  std::string run, runs_folder = "runs", format = "hf", out, architecture, dtype, max_shard_size = "5GB";
  std::vector<std::string> calibrate;  // files of text; empty: without calibration
  bool merge_lora = false, without_mtp = false;
};

// A run's newest intact checkpoint, or the one that --run names, as it was resolved for training.
struct ExportedRun {
  fs::path folder;
  Checkpoint checkpoint;
  RunConfig config;
  std::optional<Ledger> ledger;  // of the import that its first weights came from

  bool has_adapters() const { return config.model.lora_rank > 0; }
  // The text of its tokenizer.json, if it has one.
  std::optional<std::string> tokenizer() const;
};

// Warnings go to `err`. Throws as open_run_checkpoint() does.
ExportedRun open_exported(const ExportArgs& args, std::FILE* err);

// The architecture of --architecture or of the import, or else the first that fits the model in --format. Throws
// ConfigError with the differences from each.
const Architecture& architecture_of(const ExportedRun& run, const ExportArgs& args);

struct ChatTokens {
  std::string chat_template;           // its text; empty: none, and no tokens either
  std::string bos_token, eos_token;    // as the template was given them; empty: not given
  std::optional<int32_t> end_of_turn;  // the token that ends an answer
};

// The chat template that a run was fine-tuned with, and its tokens; empty for other runs and without a tokenizer.
ChatTokens chat_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer);

// The style of tensor names that the import found, unless Witan only reads that style.
NameStyle style_for(const ExportedRun& run, const Architecture& architecture);

// Writes the files of `witan export --format hf` beside the weights: config.json as imported with the files that came
// with it, if it still describes the model; otherwise a new config.json, generation_config.json, tokenizer_config.json
// and the run's own tokenizer. Then the chat template that the run was fine-tuned with. `quantization`: the text of
// config.json's quantization_config, or empty.
void write_companions(const ExportedRun& run, const Architecture& architecture, const HfExport& how,
                      const std::string& quantization, const fs::path& out, Ledger& ledger);

}  // namespace witan::cli
