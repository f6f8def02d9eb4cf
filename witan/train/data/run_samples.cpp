#include "witan/train/data/run_samples.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/base/threads/threads.h"
#include "witan/data/samples/packed_samples.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

// get_train_valid_test_num_samples() of megatron/training/training.py.
std::array<int64_t, 3> samples_of(const RunConfig& config) {
  const TrainConfig& train = config.train;
  const int64_t evaluations = (train.eval_interval > 0 ? train.train_iters / train.eval_interval : 0) + 1;
  const int64_t of_one = train.eval_iters * train.global_batch_size;
  return {config.samples_to_train_on(), evaluations * of_one, of_one};
}

megatron::GptDataOptions options_of(const RunConfig& config, const fs::path& prefix) {
  const DataConfig& data = config.data;
  megatron::GptDataOptions options;
  options.samples = samples_of(config);
  options.whole[static_cast<size_t>(megatron::Part::valid)] = config.train.full_validation;
  options.sequence_length = data.seq_length;
  options.seed = static_cast<uint32_t>(config.train.seed);
  options.cache = data.data_cache_path;
  const auto is_evaluated = [&](size_t part) {
    const bool whole = options.whole[part];
    return part == static_cast<size_t>(megatron::Part::train) || whole || config.train.eval_iters > 0;
  };
  if (data.train_data_path.empty()) {
    options.blend = data.data_path.empty() ? megatron::Blend{{prefix.string()}, {}}
                                           : megatron::parse_blend(data.data_path, "data_path");
    options.shares = megatron::parse_split(data.split);
    for (size_t part = 0; part < options.shares.size(); ++part)
      if (!is_evaluated(part)) options.shares[part].reset();
    return options;
  }
  const std::array<std::pair<const char*, const std::string*>, 3> paths = {{{"train_data_path", &data.train_data_path},
                                                                            {"valid_data_path", &data.valid_data_path},
                                                                            {"test_data_path", &data.test_data_path}}};
  for (size_t part = 0; part < paths.size(); ++part)
    if (const auto& [key, list] = paths[part]; !list->empty() && is_evaluated(part))
      options.blend_of[part] = megatron::parse_blend(*list, key);
  return options;
}

std::string order_of(const SampleSource& train) {
  std::string order;
  const auto add = [&](const megatron::GptSamples& one) {
    order += cat(one.epochs().tokens, ' ', one.epochs().count, ' ', one.epochs().before.value_or(-1), '\n');
  };
  if (const auto* blended = dynamic_cast<const megatron::BlendedSamples*>(&train))
    for (const auto& part : blended->parts()) add(*part);
  else
    add(dynamic_cast<const megatron::GptSamples&>(train));
  return hash_hex(order.data(), order.size());
}

}  // namespace

MegatronSamples open_megatron_samples(const RunConfig& config, const fs::path& prefix) {
  const megatron::GptDataOptions options = options_of(config, prefix);
  MegatronSamples samples{megatron::open_gpt_data(options), {}, {}};
  const auto& [train, valid, test] = samples.parts;
  const bool evaluates = config.train.eval_iters > 0 || config.train.full_validation;
  require<DataError>(train && (valid || !evaluates), "split = ", config.data.split, " leaves nothing to ",
                     train ? "evaluate on" : "train on", ": give that part a share, as 99,1,0",
                     train ? ", or make no evaluations (eval_iters = 0)" : "");
  const int64_t wanted = options.samples[0];
  require<DataError>(*train->size() >= wanted, "the run takes ", wanted, " samples and the blend has ", *train->size(),
                     ", since datasets without weights are read once, as in Megatron-LM: give weights, or lower "
                     "train_iters");
  samples.fingerprint = order_of(*train);
  for (const std::string& one : (options.blend ? options.blend : options.blend_of[0])->prefixes)
    samples.prefixes.emplace_back(one);
  return samples;
}

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
