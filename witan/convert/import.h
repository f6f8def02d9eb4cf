// From another program's files to a checkpoint of weights alone, a stretch at a time: memory holds a few MiB and, of
// quantised weights, one tensor.
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

// Values of weights that are NaN or infinite: they are copied as they are, and make whatever is computed of them NaN.
struct NonFinite {
  int64_t values = 0, tensors = 0;
  std::string first;  // tensor of the source, or of Witan's where that was made of several
};
// "2 values of WHOSE are NaN or infinite, in 1 tensor, …", to be warned of; empty where there are none.
std::string describe(const NonFinite& found, const std::string& whose);

struct Imported {
  Ledger ledger;  // its files empty
  NonFinite non_finite;
};

// Writes CHECKPOINTS/step-0, complete or not at all, with these small files (name, bytes) and scalars beside the
// weights. The same files give the same bytes. Throws CheckpointError, IoError, DiskFullError.
Imported import_weights(ForeignWeights& weights, const fs::path& checkpoints,
                        const std::vector<std::pair<std::string, std::string>>& files, const Json& scalars);

}  // namespace witan
