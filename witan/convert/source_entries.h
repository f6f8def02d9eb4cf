// The side of a ledger that lists what an exported checkpoint holds.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/convert/ledger.h"
#include "witan/convert/weight_source.h"

namespace witan {

// Of every tensor of the model its hash and where it went; of an adapter that is merged, its matrix did. Buffers of
// training may have no place. Throws CheckpointError for a parameter that has none.
std::vector<LedgerEntry> source_entries(CheckpointWeights& weights,
                                        const std::map<std::string, std::vector<std::string>>& went_into);

}  // namespace witan
