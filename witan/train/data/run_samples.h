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
  // Hash of the order of training samples, which depends on the number of epochs over each dataset, and thereby on the
  // length of the run.
  std::string fingerprint;
  std::vector<fs::path> prefixes;  // of the training data
};

// Samples in Megatron-Core's order. `prefix`: of the token shards, if the configuration names none. Throws ConfigError,
// DataError, CorruptionError, IoError; DataError, too, if there are too few samples for training or evaluation.
MegatronSamples open_megatron_samples(const RunConfig& config, const fs::path& prefix);

// Samples in Witan's order: of text, concatenated or packed (data_packing), or of conversations (packing). `shuffle` is
// false for evaluation, whose samples are the same in every epoch. Throws DataError, ConfigError.
std::shared_ptr<const SampleSource> open_samples(std::shared_ptr<const TokenDataset> tokens, const DataConfig& config,
                                                 uint64_t seed, bool shuffle);

}  // namespace witan
