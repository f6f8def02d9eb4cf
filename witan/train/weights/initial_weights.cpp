#include "witan/train/weights/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"
#include "witan/convert/gguf/gguf_weights.h"
#include "witan/convert/hf/hf_side.h"
#include "witan/convert/hf/hf_weights.h"
#include "witan/convert/hf/peft_weights.h"
#include "witan/convert/ledger.h"
#include "witan/convert/megatron/megatron_weights.h"
#include "witan/convert/model_function.h"
#include "witan/model/frozen.h"
#include "witan/nn/lora.h"
#include "witan/tensor/host.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/named_checkpoint.h"

namespace witan {
namespace {

std::unique_ptr<WeightSource> weights_of(Checkpoint checkpoint) {
  ModelConfig model = config_of(checkpoint).model;
  return std::make_unique<CheckpointWeights>(std::move(checkpoint), std::move(model));
}

// Modules of multi-token prediction that the source lacks are initialised as in a new model.
bool is_of_mtp(const std::string& name) {
  return name.starts_with("mtp.");
}

// The run of a checkpoint RUN/checkpoints/step-N.
fs::path run_of(const fs::path& checkpoint) {
  return checkpoint.parent_path().parent_path();
}

// The architecture of the base model of adapters, whose modules' names they have.
const Architecture& architecture_of(const WeightSource& base, const std::string& asked) {
  if (const auto* foreign = dynamic_cast<const ForeignWeights*>(&base)) return foreign->architecture();
  const fs::path ledger = run_of(base.where()) / kLedgerName;
  std::error_code error;
  const Architecture* known = nullptr;
  if (fs::is_regular_file(ledger, error))
    known = find_architecture(parse_ledger(read_file(ledger), ledger.string()).architecture);
  require<ConfigError>(known != nullptr, asked, "the base model of adapters, ", base.where(),
                       ", is a run that was not imported, so that the names of its modules are not known: export it "
                       "(`witan export --format hf`) and set init_base to that folder");
  return *known;
}

std::unique_ptr<WeightSource> open_adapters(const fs::path& folder, const fs::path& runs_folder,
                                            const std::string& asked, std::vector<std::string>& warnings,
                                            const std::string& base) {
  const std::string named = base_model_of(folder.string(), base);
  require<ConfigError>(!named.empty(), asked, folder.string(),
                       " holds adapters, and its adapter_config.json names no base model "
                       "(base_model_name_or_path): set init_base to the base model");
  std::unique_ptr<WeightSource> source;
  try {
    source = open_weights(named, runs_folder, asked, warnings);
  } catch (const CheckpointError& error) {
    if (!base.empty()) throw;
    throw CheckpointError(cat(error.what(), ". It is the base model that ", (folder / kPeftConfig).string(),
                              " names; set init_base to where it is here"));
  }
  const Architecture& architecture = architecture_of(*source, asked);
  return std::make_unique<PeftWeights>(folder, std::move(source), architecture);
}

}  // namespace

std::string base_model_of(const std::string& where, const std::string& base) {
  if (!is_adapter_folder(where)) return where;
  if (!base.empty()) return base;
  const std::string named = base_of_adapters(where);
  std::error_code error;
  const fs::path beside = fs::path(where) / named;
  return !named.empty() && !fs::exists(named, error) && fs::exists(beside, error) ? beside.lexically_normal().string()
                                                                                  : named;
}

std::unique_ptr<WeightSource> open_weights(const std::string& where, const fs::path& runs_folder,
                                           const std::string& asked, std::vector<std::string>& warnings,
                                           const std::string& base) {
  if (auto named = checkpoint_of_name(where, runs_folder)) return weights_of(std::move(*named));
  for (const fs::path& path : {fs::path(where), runs_folder / where}) {
    if (auto found = checkpoint_in(path, asked, warnings)) return weights_of(std::move(*found));
    if (is_adapter_folder(path)) return open_adapters(path, runs_folder, asked, warnings, base);
    if (is_hf_folder(path)) return std::make_unique<HfWeights>(path);
    if (is_gguf_model(path)) return std::make_unique<GgufWeights>(path);
    if (is_megatron_folder(path)) return std::make_unique<MegatronWeights>(path);
  }
  throw CheckpointError(cat(
      asked, "there is neither a Hugging Face folder (with config.json), a GGUF file or its parts, a checkpoint of ",
      "Megatron-LM, a checkpoint or a run's folder, nor a run in ", runs_folder.string(),
      ", of that name; NAME@best and NAME@STEP name a checkpoint of a run", way_to_fetch(where)));
}

std::optional<fs::path> tokenizer_of(const WeightSource& source) {
  if (const auto* adapters = dynamic_cast<const PeftWeights*>(&source)) return tokenizer_of(adapters->base());
  if (const auto* gguf = dynamic_cast<const GgufWeights*>(&source))
    return gguf->file().metadata().texts("tokenizer.ggml.tokens").empty() ? std::nullopt
                                                                          : std::optional(gguf->file().path());
  const fs::path path = fs::path(source.where()) / "tokenizer.json";
  std::error_code error;
  return fs::is_regular_file(path, error) ? std::optional(path) : std::nullopt;
}

void copy_companions_of(const WeightSource& source, const fs::path& run) {
  if (const auto* adapters = dynamic_cast<const PeftWeights*>(&source)) {
    copy_companions_of(adapters->base(), run);
    return write_file_atomically(run / kAdapterLedger, adapters->ledger().text());
  }
  if (const auto* hf = dynamic_cast<const HfWeights*>(&source)) {
    copy_companions(hf->folder().path(), hf->folder().companions(), run / kCompanionFolder);
    keep_side_tensors(*hf, run / kCompanionFolder);
  } else if (dynamic_cast<const CheckpointWeights*>(&source) != nullptr) {
    inherit_companions(run_of(source.where()), run);
  }
}

void require_same_function(const ModelConfig& model, const WeightSource& source, const std::string& asked) {
  const auto different = differences(model, source.model());
  require<ConfigError>(different.empty(), asked, different.empty() ? "" : different.front(), ", which the model of ",
                       source.where(), " has: set that, or leave the key out, and the run takes the source's");
}

InitialWeights::InitialWeights(const RunConfig& config, const std::string& key)
    : config_(config),
      asked_(cat(key, " = ", config.train.init_from, ": ")),
      source_(open_weights(config.train.init_from, config.train.runs_folder, asked_, warnings_,
                           key == "init_from" ? config.train.init_base : "")),
      weights_(source_->weights()) {
  check();
}

void InitialWeights::check() const {
  const std::string& asked = asked_;
  require_same_function(config_.model, *source_, asked);
  const int64_t source_modules = source_->model().mtp_num_layers;
  std::vector<std::string> places;
  const bool adapted = source_->model().lora_rank > 0;
  require<ConfigError>(!adapted || config_.model.lora_rank > 0, asked, source_->where(),
                       " has adapters, and the new model has none: merge them first (`witan export --format hf`) and "
                       "start from that folder, or set lora_rank = ",
                       source_->model().lora_rank);
  for (const ModelTensor& tensor : tensors_of(config_.model)) {
    places.push_back(tensor.name);
    const auto found = weights_.find(tensor.name);
    const bool made_here =
        tensor.buffer || (is_adapter(tensor.name) && !adapted) || (is_of_mtp(tensor.name) && source_modules == 0);
    if (found == weights_.end() && made_here) continue;
    require<CheckpointError>(found != weights_.end(), asked, source_->where(), " holds no tensor \"", tensor.name,
                             "\", which the new model has");
    const bool same = has_vocabulary_rows(tensor.name)
                          ? found->second.dims() == 2 && found->second[1] == tensor.shape[1]
                          : found->second == tensor.shape;
    require<CheckpointError>(same, asked, source_->where(), ": \"", tensor.name, "\" is ", found->second,
                             ", the new model has ", tensor.shape);
  }
  for (const auto& [name, shape] : weights_)
    require<CheckpointError>(std::ranges::find(places, name) != places.end(), asked, source_->where(), " holds \"",
                             clipped(name), "\" ", shape, ", which the new model has no place for: it would be lost",
                             is_of_mtp(name) ? cat("; set mtp_num_layers = ", source_modules) : "");
}

void InitialWeights::fill(Stream& stream, const std::vector<StateTensor>& state,
                          const std::vector<Parameter*>& parameters) {
  stream.wait();
  for (const StateTensor& to : state) {
    if (to.kind == StateTensor::Kind::optimizer || !is_floating(to.local.dtype())) continue;
    if (const std::string name = to.parameter(); weights_.contains(name)) fill(to, name);
  }
  for (const Parameter* parameter : parameters) {
    if (!parameter->in_codes() || !weights_.contains(parameter->name())) continue;
    const std::string words = CodedNames(parameter->name(), parameter->spec().format).words;
    const bool writes =
        std::ranges::any_of(state, [&](const StateTensor& to) { return to.writes && to.name == words; });
    encode(stream, *parameter, writes);
  }
}

void InitialWeights::read(const std::string& name, const Shape& global, const Region& region, int64_t begin,
                          int64_t end, std::vector<double>& values) {
  const int64_t known = has_vocabulary_rows(name) ? config_.model.vocab_size * global[1] : global.elements();
  values.assign(static_cast<size_t>(end - begin), 0.0);
  double* at = values.data();
  for (const Region& piece : region.slice(begin, end))
    for (int64_t run = 0; run < std::max<int64_t>(piece.runs(), 1) && piece.elements() > 0; ++run) {
      const int64_t first = piece.first() + run * piece.distance();
      if (first < known) source_->read(name, first, std::min(piece.length(), known - first), at);
      at += piece.length();
    }
}

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements

int64_t count_non_finite(const std::vector<double>& values) {
  return std::ranges::count_if(values, [](double value) { return !std::isfinite(value); });
}

}  // namespace

void InitialWeights::fill(const StateTensor& to, const std::string& name) {
  dispatch_floating(to.dtype(), [&]<class T>() {
    std::vector<double> values;
    std::vector<T> converted;
    for (int64_t begin = 0, end; begin < to.region.elements(); begin = end) {
      end = std::min(to.region.elements(), begin + kPiece);
      read(name, to.global_shape, to.region, begin, end, values);
      if (const int64_t bad = count_non_finite(values); bad > 0 && to.writes && to.kind != StateTensor::Kind::master)
        non_finite_[name] += bad;
      converted.resize(values.size());
      std::ranges::transform(values, converted.begin(), [](double value) { return T(value); });
      if (to.remainder.defined())
        split_from_host(to.local, to.remainder, begin, reinterpret_cast<const std::byte*>(converted.data()),
                        end - begin);
      else
        copy_from_host(to.local, begin * static_cast<int64_t>(sizeof(T)), converted.data(),
                       (end - begin) * static_cast<int64_t>(sizeof(T)));
    }
  });
}

void InitialWeights::encode(Stream& stream, const Parameter& to, bool counts) {
  const int64_t first = to.shard_first(), elements = to.codes().elements();
  std::vector<double> values;
  for (int64_t begin = 0, end; begin < elements; begin = end) {
    end = std::min(elements, begin + kPiece);
    read(to.name(), to.global_shape(), to.region(), first + begin, first + end, values);
    if (const int64_t bad = counts ? count_non_finite(values) : 0; bad > 0) non_finite_[to.name()] += bad;
    const kernels::EncodingLoss loss = kernels::encode_weights(stream, to.codes(), begin, values);
    if (counts) rounding_[std::string(kernels::name_of(to.spec().format))] += {loss.squared_error, loss.squared_values};
  }
}

}  // namespace witan
