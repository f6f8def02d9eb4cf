#include "witan/convert/weight_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/model/frozen.h"
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
      shards_(std::make_unique<Shards>(checkpoint_.folder, checkpoint_.manifest)) {
  for (const auto& [name, entry] : checkpoint_.manifest.tensors)
    if (const auto part = coded_part(name); part && !part->scales && entry.shape.dims() > 0) {
      const int last = entry.shape.dims() - 1;
      const int64_t each = kernels::traits_of(part->format).codes_per_word();
      coded_.emplace(part->parameter, Coded{part->format, entry.shape.with(last, entry.shape[last] * each)});
    }
}

bool CheckpointWeights::has(const std::string& name) const {
  return coded_.contains(name) || checkpoint_.manifest.tensors.contains(name);
}

std::map<std::string, Shape> CheckpointWeights::weights() const {
  std::map<std::string, Shape> all;
  for (const auto& [name, entry] : checkpoint_.manifest.tensors)
    if (StateTensor::is_of_model(entry.kind) && element_of(entry.dtype) && !is_fp8_state(name) && !coded_part(name))
      all.emplace(name, entry.shape);
  for (const auto& [name, coded] : coded_) all.emplace(name, coded.shape);
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

const Shape& CheckpointWeights::shape_of(const std::string& name) const {
  const auto coded = coded_.find(name);
  return coded == coded_.end() ? entry(name).shape : coded->second.shape;
}

void CheckpointWeights::read_bytes(const std::string& key, const Manifest::Entry& from, int64_t first, int64_t count,
                                   std::byte* out) {
  const int64_t width = size_of(from.dtype);
  for (const Manifest::Part& part : from.parts) {
    if (part.region.first() >= first + count || part.region.end() <= first) continue;
    const std::span<const std::byte> bytes = shards_->bytes_of(key, from, part);
    for_overlaps(Region(first, count), part.region, [&](int64_t here, int64_t there, int64_t length) {
      const auto run = bytes.subspan(static_cast<size_t>(there * width), static_cast<size_t>(length * width));
      std::memcpy(out + here * width, run.data(), run.size());
      release_pages(run);
    });
  }
}

// Whole groups around the elements are decoded.
void CheckpointWeights::decode(const std::string& name, const Coded& coded, int64_t first, std::span<float> out) {
  const kernels::WeightFormatTraits& format = kernels::traits_of(coded.format);
  const CodedNames names(name, coded.format);
  const Manifest::Entry &words = entry(names.words), &scales = entry(names.scales);
  require<CheckpointError>(
      words.dtype == DType::i32 && scales.dtype == format.scale && coded.shape.last() % format.group == 0 &&
          scales.shape.elements() == format.numbers(coded.shape.elements()),
      where(), ": \"", clipped(names.words), "\" ", words.dtype, " ", words.shape, " and \"", clipped(names.scales),
      "\" ", scales.dtype, " ", scales.shape, " do not fit together as codes and scales of ", format.name);
  const int64_t begin = first / format.group * format.group;
  const int64_t end = (first + std::ssize(out) + format.group - 1) / format.group * format.group;
  std::vector<uint32_t> of_words(static_cast<size_t>(format.words(end - begin)));
  read_bytes(names.words, words, format.words(begin), std::ssize(of_words),
             reinterpret_cast<std::byte*>(of_words.data()));
  std::vector<std::byte> stored(static_cast<size_t>(format.numbers(end - begin) * size_of(format.scale)));
  read_bytes(names.scales, scales, format.numbers(begin), format.numbers(end - begin), stored.data());
  std::vector<float> of_scales(static_cast<size_t>(format.numbers(end - begin)));
  copy_elements(Element::f32, reinterpret_cast<std::byte*>(of_scales.data()), *element_of(format.scale), stored.data(),
                1, std::ssize(of_scales));
  if (begin == first && end == first + std::ssize(out))
    return kernels::decode_weights_on_host(coded.format, of_words, of_scales, out);
  std::vector<float> values(static_cast<size_t>(end - begin));
  kernels::decode_weights_on_host(coded.format, of_words, of_scales, values);
  std::copy_n(values.begin() + (first - begin), out.size(), out.begin());
}

void CheckpointWeights::read(const std::string& name, int64_t first, int64_t count, double* out) {
  if (const auto coded = coded_.find(name); coded != coded_.end()) {
    std::vector<float> values(static_cast<size_t>(count));
    decode(name, coded->second, first, values);
    std::ranges::copy(values, out);
    return;
  }
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
  const auto found = std::ranges::find_if(adapters_, [&](const AdapterTensors& adapter) {
    return adapter.a == name || adapter.b == name || (!adapter.magnitude.empty() && adapter.magnitude == name);
  });
  return found == adapters_.end() ? std::nullopt : std::optional(found->base);
}

HeldTensor CheckpointWeights::whole(const std::string& name) {
  if (const auto known = merged_.find(name); known != merged_.end()) return known->second.held;
  std::vector<AdapterValues> adapters;
  for (const AdapterTensors& adapter : adapters_)
    if (adapter.base == name)
      adapters.push_back({adapter, stored(adapter.a), stored(adapter.b),
                          adapter.magnitude.empty() ? HeldTensor() : stored(adapter.magnitude)});
  if (adapters.empty()) return stored(name);
  Whole& merged = merged_.emplace(name, Whole{}).first->second;
  merged.held.type = witan::merge_adapters(stored(name), shape_of(name), adapters, scale_, merged.own);
  merged.held.bytes = merged.own;
  return merged.held;
}

HeldTensor CheckpointWeights::stored(const std::string& name) {
  if (const auto known = whole_.find(name); known != whole_.end()) return known->second.held;
  const auto coded = coded_.find(name);
  if (coded != coded_.end()) return decoded(name, coded->second);
  const Manifest::Entry& from = entry(name);
  const auto element = element_of(from.dtype);
  require<CheckpointError>(element.has_value(), where(), ": \"", clipped(name), "\" is ", from.dtype, ", no weight");
  Whole made{{*element, {}}, {}};
  if (from.parts.size() == 1 && from.parts.front().region.contiguous()) {
    made.held.bytes = shards_->bytes_of(name, from, from.parts.front());
    return whole_.emplace(name, std::move(made)).first->second.held;
  }
  const int64_t elements = from.shape.elements();
  made.own.resize(static_cast<size_t>(elements * size_of(*element)));
  read_bytes(name, from, 0, elements, made.own.data());
  Whole& kept = whole_.emplace(name, std::move(made)).first->second;
  kept.held.bytes = kept.own;
  return kept.held;
}

HeldTensor CheckpointWeights::decoded(const std::string& name, const Coded& coded) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  const Element element = *element_of(model_.compute_dtype());
  const int64_t elements = coded.shape.elements(), width = size_of(element);
  Whole made{{element, {}}, std::vector<std::byte>(static_cast<size_t>(elements * width))};
  std::vector<float> values;
  for (int64_t first = 0; first < elements; first += kPiece) {
    values.resize(static_cast<size_t>(std::min(kPiece, elements - first)));
    decode(name, coded, first, values);
    copy_elements(element, made.own.data() + first * width, Element::f32,
                  reinterpret_cast<const std::byte*>(values.data()), 1, std::ssize(values));
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
