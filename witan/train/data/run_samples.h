// The samples of a run, in Witan's order or in Megatron-Core's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "witan/data/megatron/gpt_data.h"
#include "witan/data/samples/sample_source.h"
#include "witan/train/config/config.h"

namespace witan {

struct MegatronSamples {
  megatron::GptData parts;
  // Of the order of training samples. Megatron-Core's depends on how many are taken of each dataset, and so on the
  // length of the run, but only by the number of epochs.
  std::string fingerprint;
  std::vector<fs::path> prefixes;  // of training
};

// `prefix`: of token shards, where the configuration names none. Throws ConfigError, DataError, CorruptionError,
// IoError, also where there is less to train or evaluate on than the run takes.
MegatronSamples open_megatron_samples(const RunConfig& config, const fs::path& prefix);

// Of text, laid end to end or packed (data_packing), and of conversations (packing). `shuffle`: false for samples to
// evaluate on, which are the same in every epoch. Throws DataError, ConfigError.
std::shared_ptr<const SampleSource> open_samples(std::shared_ptr<const TokenDataset> tokens, const DataConfig& config,
                                                 uint64_t seed, bool shuffle);

}  // namespace witan
