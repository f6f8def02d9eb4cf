// From another program's files to a checkpoint of weights alone, a stretch at a time: memory holds a few MiB and, of
// quantised weights, one tensor.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/base/file.h"
#include "witan/base/json.h"
#include "witan/convert/foreign_weights.h"
#include "witan/convert/ledger.h"

namespace witan {

// Writes CHECKPOINTS/step-0, complete or not at all, with these small files (name, bytes) and scalars beside the
// weights. Returns the ledger, its files empty. The same files give the same bytes. Throws CheckpointError, IoError,
// DiskFullError.
Ledger import_weights(ForeignWeights& weights, const fs::path& checkpoints,
                      const std::vector<std::pair<std::string, std::string>>& files, const Json& scalars);

}  // namespace witan
