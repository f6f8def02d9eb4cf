#include "witan/data/megatron/gpt_data.h"

#include <cmath>
#include <map>

#include "witan/base/error.h"

namespace witan::megatron {
namespace {

// Blended datasets have some samples more than their weights ask for, since a blend may take a few more of one.
constexpr double kSurplus = 0.005;

class Builder {
 public:
  explicit Builder(const GptDataOptions& options) : options_(options) {}

  // `alone`: a single dataset is read as it is, even with a weight.
  std::shared_ptr<const SampleSource> build(const Blend& blend, Part part, Share share, bool alone) {
    split_ = cat(kPartNames[static_cast<size_t>(part)], " split");
    std::optional<int64_t> wanted = options_.samples[static_cast<size_t>(part)];
    if (options_.whole[static_cast<size_t>(part)]) {
      require<ConfigError>(blend.weights.empty(), "every sample of the ", kPartNames[static_cast<size_t>(part)],
                           " split is read once, and its datasets have weights: leave the weights out");
      wanted.reset();
    }
    if (blend.prefixes.size() == 1 && (alone || blend.weights.empty()))
      return samples_of(blend.prefixes.front(), share, wanted);
    return blend.weights.empty() ? by_size(blend, share, wanted) : by_weight(blend, share, *wanted);
  }

 private:
  std::shared_ptr<const GptSamples> samples_of(const std::string& prefix, Share share, std::optional<int64_t> wanted) {
    const auto dataset = open(prefix);
    const auto sequences = static_cast<double>(dataset->sequences());
    const GptSamplesOptions one{.begin = std::lrint(share.begin * sequences),  // half to even, as Python's round()
                                .end = std::lrint(share.end * sequences),
                                .wanted = wanted,
                                .sequence_length = options_.sequence_length,
                                .seed = options_.seed,
                                .cache = cache_beside(prefix),
                                .split = split_};
    return std::make_shared<GptSamples>(dataset, one);
  }

  std::shared_ptr<const SampleSource> by_weight(const Blend& blend, Share share, int64_t wanted) {
    const std::vector<double> weights = normalized(blend.weights);
    std::vector<std::shared_ptr<const GptSamples>> parts;
    int64_t size = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double planned = std::ceil(static_cast<double>(wanted) * weights[i]);
      size += static_cast<int64_t>(planned);
      parts.push_back(samples_of(blend.prefixes[i], share, static_cast<int64_t>(std::ceil(planned * (1 + kSurplus)))));
    }
    return std::make_shared<BlendedSamples>(std::move(parts), weights, size, cache_beside(blend.prefixes.front()));
  }

  // Takes each dataset once, and the wanted number of samples of all together; none: all.
  std::shared_ptr<const SampleSource> by_size(const Blend& blend, Share share, std::optional<int64_t> wanted) {
    std::vector<std::shared_ptr<const GptSamples>> parts;
    std::vector<double> weights;
    int64_t all = 0;
    for (const std::string& prefix : blend.prefixes) {
      parts.push_back(samples_of(prefix, share, std::nullopt));
      weights.push_back(static_cast<double>(*parts.back()->size()));
      all += *parts.back()->size();
    }
    const fs::path cache = cache_beside(blend.prefixes.front());
    if (!wanted) return std::make_shared<BlendedSamples>(std::move(parts), cache);
    return std::make_shared<BlendedSamples>(std::move(parts), weights, std::min(*wanted, all), cache);
  }

  std::shared_ptr<const IndexedDataset> open(const std::string& given) {
    fs::path prefix = given;
    if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
    auto& dataset = datasets_[prefix.string()];
    if (dataset) return dataset;
    for (const char* suffix : {".bin", ".idx"})
      require<DataError>(fs::exists(prefix.string() + suffix), "there is no file ", prefix.string(), suffix,
                         ": data_samples = \"megatron\" reads pairs of .bin and .idx, as `witan data` writes them");
    return dataset = std::make_shared<IndexedDataset>(prefix);
  }

  fs::path cache_beside(const std::string& prefix) const {
    return options_.cache.empty() ? fs::path(prefix).parent_path() / "cache" : options_.cache;
  }

  const GptDataOptions& options_;
  std::string split_;  // that is built, for errors
  std::map<std::string, std::shared_ptr<const IndexedDataset>> datasets_;
};

}  // namespace

GptData open_gpt_data(const GptDataOptions& options) {
  Builder builder(options);
  GptData data;
  for (const Part part : kParts) {
    const auto i = static_cast<size_t>(part);
    if (options.blend && options.shares[i])
      data[i] = builder.build(*options.blend, part, *options.shares[i], false);
    else if (!options.blend && options.blend_of[i])
      data[i] = builder.build(*options.blend_of[i], part, {0, 1}, true);
  }
  return data;
}

}  // namespace witan::megatron
