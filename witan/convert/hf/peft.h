// Adapters of a run as a folder that PEFT loads on the base model: adapter_config.json and adapter_model.safetensors
// (https://huggingface.co/docs/peft/developer_guides/checkpoint). Names are those of transformers' modules, in front of
// which PEFT puts "base_model.model.". Adapters of experts, whose matrices are parameters of one module there, are
// `target_parameters`: A [E r, in] has the rows of one expert after the other, B [out, r E] the columns of all experts
// for a row of A, then for the next.
#pragma once

#include "witan/base/files/file.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

// Writes both files into `folder`, which must exist. `base`: where the base model is, for PEFT to load; empty: unknown.
// Returns the ledger of the adapters, its files empty. Throws ConfigError for a model without adapters, and where
// modules of the architecture hold a matrix in a form that an adapter of Witan's does not have (in one with others,
// transposed, or with gate and up taking turns).
Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder);

}  // namespace witan
