#include "witan/convert/weight_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/model/transformer.h"
#include "witan/parallel/groups.h"

namespace witan {
std::optional<Element> element_of(DType dtype) {
  const std::string_view name = safetensors_name(dtype);
  if (name.front() != 'F' && name.front() != 'B') return std::nullopt;
  return element_from_name(name, "checkpoint");
}

std::vector<ModelTensor> tensors_of(const ModelConfig& model) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  ParallelConfig alone;
  alone.ranks = alone.expert_model_parallel_size = 1;
  const Groups groups = make_meta_groups(Layout(alone, 1, model.moe.num_experts), 0);
  const Transformer whole(stream, model, 0, groups.model_axes(alone));
  std::vector<ModelTensor> tensors;
  for (const Parameter* parameter : whole.parameters())
    tensors.push_back(
        {parameter->name(), parameter->global_shape(), parameter->spec().dtype, parameter->spec().expert});
  for (const Buffer* buffer : whole.buffers())
    tensors.push_back({buffer->name(), buffer->spec().shape, buffer->value().dtype(), false, true});
  return tensors;
}

CheckpointWeights::CheckpointWeights(Checkpoint checkpoint, ModelConfig model)
    : checkpoint_(std::move(checkpoint)),
      model_(std::move(model)),
      shards_(std::make_unique<Shards>(checkpoint_.folder, checkpoint_.manifest)) {}

std::map<std::string, Shape> CheckpointWeights::weights() const {
  std::map<std::string, Shape> all;
  for (const auto& [name, entry] : checkpoint_.manifest.tensors)
    if (StateTensor::is_of_model(entry.kind) && element_of(entry.dtype) && !is_fp8_state(name))
      all.emplace(name, entry.shape);
  return all;
}

const Manifest::Entry& CheckpointWeights::entry(const std::string& name) const {
  return known(checkpoint_.manifest.tensors.find(name), name).second;
}

const Manifest::Tensors::value_type& CheckpointWeights::known(Manifest::Tensors::const_iterator found,
                                                              const std::string& name) const {
  require<CheckpointError>(found != checkpoint_.manifest.tensors.end(), where(), " holds no tensor \"", clipped(name),
                           "\": it is of another model");
  return *found;
}

void CheckpointWeights::read(const std::string& name, int64_t first, int64_t count, double* out) {
  const auto& [key, from] = known(checkpoint_.manifest.master_or_value(name), name);
  const auto element = element_of(from.dtype);
  require<CheckpointError>(element.has_value(), where(), ": \"", clipped(key), "\" is ", from.dtype, ", no weight");
  const int64_t width = size_of(*element);
  for (const Manifest::Part& part : from.parts) {
    if (part.region.first() >= first + count || part.region.end() <= first) continue;
    const std::span<const std::byte> bytes = shards_->bytes_of(key, from, part);
    for_overlaps(Region(first, count), part.region, [&](int64_t here, int64_t there, int64_t length) {
      copy_elements(Element::f64, reinterpret_cast<std::byte*>(out + here), *element, bytes.data() + there * width, 1,
                    length);
      release_pages(bytes.subspan(static_cast<size_t>(there * width), static_cast<size_t>(length * width)));
    });
  }
}

void CheckpointWeights::merge_adapters() {
  adapters_ = adapters_of(model_);
  if (const auto lora = lora_of(model_)) scale_ = lora->scale();
  model_ = without_adapters(std::move(model_));
}

void CheckpointWeights::leave_out_mtp() {
  without_mtp_ = true;
  model_.mtp_num_layers = 0;
}

bool CheckpointWeights::leaves_out(const std::string& name) const {
  return without_mtp_ && name.starts_with("mtp.");
}

std::optional<std::string> CheckpointWeights::merged_into(const std::string& name) const {
  const auto found = std::ranges::find_if(
      adapters_, [&](const AdapterTensors& adapter) { return adapter.a == name || adapter.b == name; });
  return found == adapters_.end() ? std::nullopt : std::optional(found->base);
}

HeldTensor CheckpointWeights::whole(const std::string& name) {
  if (const auto known = merged_.find(name); known != merged_.end()) return known->second.held;
  std::vector<AdapterValues> adapters;
  for (const AdapterTensors& adapter : adapters_)
    if (adapter.base == name) adapters.push_back({adapter, stored(adapter.a), stored(adapter.b)});
  if (adapters.empty()) return stored(name);
  Whole& merged = merged_.emplace(name, Whole{}).first->second;
  merged.held.type = witan::merge_adapters(stored(name), entry(name).shape, adapters, scale_, merged.own);
  merged.held.bytes = merged.own;
  return merged.held;
}

HeldTensor CheckpointWeights::stored(const std::string& name) {
  if (const auto known = whole_.find(name); known != whole_.end()) return known->second.held;
  const Manifest::Entry& from = entry(name);
  const auto element = element_of(from.dtype);
  require<CheckpointError>(element.has_value(), where(), ": \"", clipped(name), "\" is ", from.dtype, ", no weight");
  Whole made{{*element, {}}, {}};
  const int64_t elements = from.shape.elements(), width = size_of(*element);
  if (from.parts.size() == 1 && from.parts.front().region.contiguous()) {
    made.held.bytes = shards_->bytes_of(name, from, from.parts.front());
    return whole_.emplace(name, std::move(made)).first->second.held;
  }
  made.own.resize(static_cast<size_t>(elements * width));
  for (const Manifest::Part& part : from.parts) {
    const std::span<const std::byte> bytes = shards_->bytes_of(name, from, part);
    for_overlaps(Region(0, elements), part.region, [&](int64_t here, int64_t there, int64_t length) {
      std::memcpy(made.own.data() + here * width, bytes.data() + there * width, static_cast<size_t>(length * width));
    });
    release_pages(bytes);
  }
  Whole& kept = whole_.emplace(name, std::move(made)).first->second;
  kept.held.bytes = kept.own;
  return kept.held;
}

void CheckpointWeights::release() {
  for (const auto& [name, whole] : whole_)
    if (whole.own.empty()) release_pages(whole.held.bytes);
  whole_.clear();
  merged_.clear();
}

}  // namespace witan
