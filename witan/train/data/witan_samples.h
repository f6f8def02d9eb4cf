// Samples in Witan's own order, as a configuration says they are filled.
#pragma once

#include <cstdint>
#include <memory>

#include "witan/data/samples/sample_source.h"
#include "witan/train/config/config.h"

namespace witan {

// Of text, laid end to end or packed (data_packing), and of conversations (packing). `shuffle`: false for samples to
// evaluate on, which are the same in every epoch. Throws DataError, ConfigError.
std::shared_ptr<const SampleSource> open_samples(std::shared_ptr<const TokenDataset> tokens, const DataConfig& config,
                                                 uint64_t seed, bool shuffle);

}  // namespace witan
