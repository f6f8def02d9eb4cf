// Writes a Hugging Face folder from a checkpoint, tensor by tensor. Memory holds the checkpoint's tensors for one
// tensor of the folder, and only if several ranks wrote them; otherwise they are mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/convert/hf/hf_quantiser.h"
#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

// The feedback for a matrix of one of Witan's parameters, counted from 0 in a stack; null: its inputs are not known.
using FeedbackOf = std::function<std::shared_ptr<const ErrorFeedback>(const std::string& parameter, int64_t matrix)>;

struct HfExport {
  const Architecture* architecture = nullptr;
  NameStyle style;
  std::map<std::string, std::string> dtypes = {};   // as imported, by tensor; other tensors have the checkpoint's
  std::optional<Element> dtype = {};                // of all tensors, overriding the others
  std::optional<HfQuantisation> quantisation = {};  // of projections; other tensors are not quantised
  uint64_t shard_bytes = 5'000'000'000;             // the largest size of a file, unless it holds one tensor only
  fs::path side = {};                               // a file of kSideTensors, which is written as the last shard
  FeedbackOf feedback = {};                         // calibration for int4; empty: none
};

// Writes model.safetensors, or shards with an index, into `folder`, which must exist. The bytes do not depend on the
// layout that wrote the checkpoint. Returns the ledger without files. Throws ConfigError for a model that the
// architecture cannot hold or cannot have quantised; CheckpointError, IoError, DiskFullError.
Ledger export_weights(CheckpointWeights& weights, const HfExport& how, const fs::path& folder);

// The quantization_config as JSON; empty without quantisation.
std::string quantization_config(const CheckpointWeights& weights, const HfExport& how);

// Writes the adapters of a run as PEFT loads them on the base model: adapter_config.json and
// adapter_model.safetensors (https://huggingface.co/docs/peft/developer_guides/checkpoint). Names are those of
// transformers' modules after "base_model.model.". Adapters of experts, whose matrices are parameters of one module
// there, are `target_parameters`: A [E r, in] has the rows of one expert after the other, B [out, r E] the columns of
// all experts for a row of A, then for the next. n adapters of matrices that one module joins are one of rank n r: A
// has the rows of one after the other, B a block for each and zeros elsewhere. Magnitudes (lora_magnitude_vector [out])
// are the rows' norms plus the trained changes, in float32 or float64.
//
// Both files go into `folder`, which must exist. `base` is the place of the base model, for PEFT to load; empty if it
// is unknown. Returns the ledger of the adapters without files. Throws ConfigError for a model without adapters, and if
// the architecture holds experts transposed or interleaved.
Ledger export_peft(CheckpointWeights& weights, const Architecture& architecture, const std::string& base,
                   const fs::path& folder);

}  // namespace witan
