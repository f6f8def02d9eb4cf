// Writes a checkpoint of weights from another program's files. Tensors are streamed: memory holds a few MiB and, if
// weights are quantised, one dequantised tensor.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/base/json.h"
#include "witan/convert/foreign_weights.h"
#include "witan/convert/ledger.h"

namespace witan {

// The weights that are NaN or infinite. They are copied unchanged, and results computed from them are NaN.
struct NonFinite {
  int64_t values = 0, tensors = 0;
  std::string first;  // the first such tensor of the source, or of Witan if it was made of several
};
// The warning "2 values of WHOSE are NaN or infinite, in 1 tensor, …"; empty if there are none.
std::string describe(const NonFinite& found, const std::string& whose);

struct Imported {
  Ledger ledger;  // without files
  NonFinite non_finite;
};

// Writes CHECKPOINTS/step-0 with the weights, these small files (name, bytes) and scalars; the folder appears complete
// or not at all. Equal inputs give equal bytes. Throws CheckpointError, IoError, DiskFullError.
Imported import_weights(ForeignWeights& weights, const fs::path& checkpoints,
                        const std::vector<std::pair<std::string, std::string>>& files, const Json& scalars);

}  // namespace witan
