#include "witan/convert/source_entries.h"

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/text.h"
#include "witan/checkpoint/safetensors.h"

namespace witan {

std::vector<LedgerEntry> source_entries(CheckpointWeights& weights,
                                        const std::map<std::string, std::vector<std::string>>& went_into) {
  std::vector<LedgerEntry> entries;
  for (const auto& [name, entry] : weights.checkpoint().manifest.tensors) {
    if (name.find('/') != std::string::npos) continue;  // of the optimizer, or a float32 of which a value is rounded
    const auto merged = weights.merged_into(name);
    const auto places = went_into.find(merged.value_or(name));
    LedgerEntry source{name, std::string(safetensors_name(entry.dtype)),        entry.shape, "",
                       {},   merged ? "an adapter, merged into its matrix" : ""};
    if (weights.leaves_out(name)) {
      source.note = "of multi-token prediction, left out as asked";
    } else if (places == went_into.end()) {
      require<CheckpointError>(entry.buffer, weights.where(), " holds \"", clipped(name),
                               "\", which the exported model has no place for: it would be lost");
      source.note = "a counter of training, which these files have no place for";
    } else {
      source.others = places->second;
      const HeldTensor held = weights.stored(name);
      source.hash = hash_hex(held.bytes.data(), held.bytes.size());
      weights.release();
    }
    entries.push_back(std::move(source));
  }
  return entries;
}

}  // namespace witan
