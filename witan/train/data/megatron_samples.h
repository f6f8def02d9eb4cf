// Samples of data_samples = "megatron": what Megatron-LM's pretrain_gpt.py asks of its datasets for a run as long.
#pragma once

#include <string>
#include <vector>

#include "witan/data/megatron/gpt_data.h"
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

}  // namespace witan
