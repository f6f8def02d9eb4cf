// Whether token shards may be written where they are asked for.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/corpus/sources.h"

namespace witan {

// Shards of the prefix may be made where nothing lies, where an earlier call has begun them (PREFIX.partial.*), and in
// the place of shards that prepare_dataset() has made of at least one of these sources, whatever has changed since.
// Throws ConfigError, with the way out, where a file of another origin would be overwritten, or one of the sources;
// `option`: the flag that names the prefix.
void check_own_shards(const fs::path& prefix, const std::vector<Source>& sources, const std::string& option);

}  // namespace witan
