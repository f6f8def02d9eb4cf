// A run that `witan export` writes for other programs, and which of their architectures it is.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include "witan/checkpoint/store.h"
#include "witan/convert/ledger.h"
#include "witan/convert/tensor_names.h"
#include "witan/train/config/config.h"

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

}  // namespace witan::cli
