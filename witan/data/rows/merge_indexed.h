// Several pairs of .bin and .idx as one, byte for byte what Megatron-LM's tools/merge_datasets.py makes of them.
#pragma once

#include <functional>
#include <vector>

#include "witan/base/files/file.h"

namespace witan {

struct MergedIndexed {
  int64_t sequences = 0, documents = 0, tokens = 0;
  uint64_t bytes = 0;  // of the .bin
};

// Writes OUTPUT.bin and OUTPUT.idx, and OUTPUT.loss.bin and .idx if these are shards of conversations; documents in the
// order of the prefixes. `progress` gets bytes done and in all. Throws DataError if the pairs differ in the type of
// their tokens, in having modes (of multimodal data), in being conversations, or in the tokenizer that Witan recorded;
// ConfigError if the output exists; CorruptionError, IoError, DiskFullError.
MergedIndexed merge_indexed(const std::vector<fs::path>& prefixes, const fs::path& output,
                            const std::function<void(uint64_t done, uint64_t total)>& progress = {});

// The prefix that `path` names by PREFIX.bin, PREFIX.idx or PREFIX, if both files are there; else empty.
fs::path indexed_prefix(const fs::path& path);
// All of a folder, sorted by name, as merge_datasets.py takes them.
std::vector<fs::path> indexed_prefixes_in(const fs::path& folder);

}  // namespace witan
