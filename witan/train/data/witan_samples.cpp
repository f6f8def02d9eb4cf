#include "witan/train/data/witan_samples.h"

#include <utility>

#include "witan/base/threads/threads.h"
#include "witan/data/samples/packed_samples.h"
#include "witan/data/samples/samples.h"

namespace witan {

std::shared_ptr<const SampleSource> open_samples(std::shared_ptr<const TokenDataset> tokens, const DataConfig& config,
                                                 uint64_t seed, bool shuffle) {
  if (config.data_packing == "best_fit")
    return std::make_shared<PackedSamples>(
        std::move(tokens),
        PackedSamplesOptions{
            .sequence_length = config.seq_length, .seed = seed, .shuffle = shuffle, .threads = usable_cores()});
  return std::make_shared<Samples>(std::move(tokens),
                                   SamplesOptions{config.seq_length, seed, shuffle, packing_from_name(config.packing)});
}

}  // namespace witan
