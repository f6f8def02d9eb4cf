// What `witan export --format hf` writes beside the weights.
#pragma once

#include "witan/cli/models/exported_run.h"
#include "witan/convert/hf/hf_export.h"

namespace witan::cli {

// The names that the import found, but for what is only read.
NameStyle style_for(const ExportedRun& run, const Architecture& architecture);

// config.json as it was imported, where it still says what the model is, with the files that came with it; else one of
// the model, with generation_config.json, tokenizer_config.json and the run's own tokenizer. Then the chat template
// that the run was fine-tuned by. `quantization`: of config.json's quantization_config, or empty.
void write_companions(const ExportedRun& run, const Architecture& architecture, const HfExport& how,
                      const std::string& quantization, const fs::path& out, Ledger& ledger);

}  // namespace witan::cli
