// A run that `witan export` writes for other programs, and which of their architectures it is.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "witan/checkpoint/store.h"
#include "witan/convert/architecture.h"
#include "witan/convert/export.h"
#include "witan/convert/ledger.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/run/config.h"

namespace witan::cli {

struct ExportArgs {
  std::string run, runs_folder = "runs", format = "hf", out, architecture, dtype, max_shard_size = "5GB";
  bool merge_lora = false, without_mtp = false;
};

// A run's newest intact checkpoint, or the one that --run names, as it was resolved for training.
struct ExportedRun {
  fs::path folder;
  Checkpoint checkpoint;
  RunConfig config;
  std::optional<Ledger> ledger;  // of the import that its weights began with

  bool has_adapters() const { return config.model.lora_rank > 0; }
  // Text of its tokenizer.json; nothing where it has none.
  std::optional<std::string> tokenizer() const;
};

// Warnings go to `err`. Throws as open_run_checkpoint() does.
ExportedRun open_exported(const ExportArgs& args, std::FILE* err);

// --architecture, or that of the import, or the first that can be this model with --format. Throws ConfigError with
// what each has otherwise.
const Architecture& architecture_of(const ExportedRun& run, const ExportArgs& args);

struct ChatTokens {
  std::string chat_template;           // its text; empty: none, nor are there any tokens
  std::string bos_token, eos_token;    // as the template was given them; empty: not
  std::optional<int32_t> end_of_turn;  // what ends an answer
};

// Nothing of a run that was not fine-tuned so, or has no tokenizer.
ChatTokens chat_tokens(const ExportedRun& run, const std::optional<Tokenizer>& tokenizer);

// The names that the import found, but for what is only read.
NameStyle style_for(const ExportedRun& run, const Architecture& architecture);

// config.json as it was imported, where it still says what the model is, with the files that came with it; else one of
// the model, with generation_config.json, tokenizer_config.json and the run's own tokenizer. Then the chat template
// that the run was fine-tuned by. `quantization`: of config.json's quantization_config, or empty.
void write_companions(const ExportedRun& run, const Architecture& architecture, const HfExport& how,
                      const std::string& quantization, const fs::path& out, Ledger& ledger);

}  // namespace witan::cli
