// The tensors of a folder that are not in the model: towers and projectors of a vision-language model, other modules
// (Architecture::side), and projections to keys and values in layers that borrow another layer's, which published
// folders of Gemma 4 hold although no program reads them. A run keeps them in one safetensors file, and an export
// writes that file again, byte for byte.
#pragma once

#include <optional>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/ledger.h"

namespace witan {

// Writes `folder`/kSideTensors, with the names of the text decoder in its metadata, if there may be any.
// Creates the folder if needed. Throws IoError, DiskFullError.
void keep_side_tensors(const HfWeights& weights, const fs::path& folder);

// The prefix and the head of the text decoder whose side tensors are in this folder; nothing if there is no such file.
// Throws CheckpointError for a damaged one.
std::optional<NameStyle> side_style(const fs::path& folder);

// Copies such a file. Returns its tensors as entries of an export's target, in the file's order. Throws CheckpointError
// for a damaged file; IoError, DiskFullError.
std::vector<LedgerEntry> copy_side_tensors(const fs::path& from, const fs::path& to);

}  // namespace witan
