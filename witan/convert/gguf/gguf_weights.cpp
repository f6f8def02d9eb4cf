#include "witan/convert/gguf/gguf_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "witan/base/error.h"
#include "witan/base/numbers/half.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

constexpr std::string_view kReadTypes[] = {"F32",  "F16",  "BF16", "F64",  "Q5_0",
                                           "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"};

constexpr std::string_view kTableType = "I32";  // of tables of experts

constexpr std::string_view kKeyProjection = ".attn_k.weight";

Shape shape_of(const GgufTensor& tensor) {
  Shape shape;
  for (const int64_t dim : tensor.dims) shape.append(dim);
  return shape;
}

// llama.cpp's own programs leave out leading dims of 1, which its converter writes.
Shape without_ones(const Shape& shape) {
  Shape rest;
  for (int dim = 0; dim < shape.dims(); ++dim)
    if (shape[dim] != 1 || rest.dims() > 0) rest.append(shape[dim]);
  return rest;
}

GgufFacts facts_in(const GgufParts& file) {
  GgufFacts facts;
  const auto* embedding = file.find(kGgufEmbedding);
  require<CheckpointError>(embedding != nullptr, file.path().string(), " has no tensor \"", kGgufEmbedding,
                           "\": it holds no model", file.tensors().empty() ? ", only a vocabulary" : "");
  facts.vocab_size = embedding->info.dims.front();
  facts.tied = file.find(kGgufHead) == nullptr;
  facts.tensors = static_cast<int64_t>(file.tensors().size());
  facts.qkv_biases = file.find("blk.0.attn_q.bias") != nullptr;
  facts.qk_norms = file.find("blk.0.attn_q_norm.weight") != nullptr;
  facts.mlp_biases = std::ranges::any_of(
      file.tensors(), [](const GgufFile::Placed& tensor) { return tensor.info.name.ends_with(".ffn_up.bias"); });
  for (const auto& tensor : file.tensors())
    if (const std::string& name = tensor.info.name; name.ends_with(kKeyProjection)) {
      const std::string block = name.substr(0, name.size() - kKeyProjection.size());
      facts.values_from_keys |= file.find(block + ".attn_v.weight") == nullptr;
    }
  const auto* factors = file.find(kRopeFactors);
  if (factors == nullptr) return facts;
  require<CheckpointError>(factors->info.type->name == "F32", file.path().string(), ": \"", kRopeFactors, "\" is ",
                           factors->info.type->name, ", not F32");
  facts.rope_factors.resize(static_cast<size_t>(factors->info.elements()));
  std::memcpy(facts.rope_factors.data(), factors->bytes.data(), factors->bytes.size());
  return facts;
}

}  // namespace

GgufWeights::GgufWeights(const fs::path& path, MtpLayers mtp)
    : file_(path), hf_(read_gguf_config(file_.metadata(), facts_in(file_))) {
  if (hf_.model.attention.learned_positions()) hf_.model.attention.max_position_embeddings = hf_.positions;
  if (mtp == MtpLayers::take && file_.find(cat("blk.", hf_.model.num_layers, ".nextn.eh_proj.weight")) != nullptr)
    hf_.model.mtp_num_layers = hf_.mtp_layers;
  change_style().storage = default_storage(*hf_.architecture);
  list_tensors(hf_.model);
  bool joined = false;
  for (const auto& tensor : file_.tensors()) joined |= tensor.info.name.ends_with(".attn_kv_b.weight");
  const LatentStorage latent = joined ? LatentStorage::joined : LatentStorage::divided;
  std::vector<Link> links = gguf_links(*hf_.architecture, hf_.model, latent, tensors());
  for (const Link& link : links)
    for (const SharedBox& piece : link.pieces) maps_[piece.from.name] = piece.values;
  set_links(std::move(links));
  check_tensors(gguf_tensors(*hf_.architecture, hf_.model, latent, tensors()), mtp);
  choose_dtype(hf_.model, [&](Element by, const std::string& source) { return is_held_by(by, source); });
  check_tables_of_experts(hf_.model.moe.num_experts);
}

// Whether the tensor is of multi-token prediction, and either left out as asked or a copy of the model's embedding or
// head, which llama.cpp does not need.
bool GgufWeights::is_spare_mtp(const GgufFile::Placed& tensor, MtpLayers mtp) {
  const std::string& name = tensor.info.name;
  constexpr std::string_view kBlock = "blk.";
  if (hf_.mtp_layers == 0 || !name.starts_with(kBlock) ||
      std::atoll(name.c_str() + kBlock.size()) < hf_.model.num_layers)
    return false;
  if (mtp == MtpLayers::leave_out) {
    note(name, "of multi-token prediction, left out as asked (--without-mtp)");
    return true;
  }
  const bool head = name.ends_with(".nextn.shared_head_head.weight");
  if (!head && !name.ends_with(".nextn.embed_tokens.weight")) return false;
  const auto* own = file_.find(head && file_.find(kGgufHead) != nullptr ? kGgufHead : kGgufEmbedding);
  const bool comparable = tensor.info.type == own->info.type;  // blocks of other types round otherwise
  require<CheckpointError>(!comparable || std::ranges::equal(tensor.bytes, own->bytes), file_.path().string(), ": \"",
                           name, "\" is not equal to \"", own->info.name,
                           "\": Witan's modules of multi-token prediction share the model's embedding and head; leave "
                           "them out with --without-mtp");
  note(name, cat("a copy of \"", own->info.name, "\": nothing to keep"));
  return true;
}

bool GgufWeights::is_of_borrowed_keys(std::string_view name) const {
  constexpr std::string_view kOfKeys[] = {".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight"};
  const ModelConfig& model = hf_.model;
  for (int64_t layer = model.num_layers - model.num_kv_shared_layers; layer < model.num_layers; ++layer)
    for (const std::string_view own : kOfKeys)
      if (name == cat("blk.", layer, own)) return true;
  return false;
}

void GgufWeights::check_tensors(const std::vector<std::pair<std::string, Shape>>& expected, MtpLayers mtp) {
  const std::string here = file_.path().string();
  const std::string_view type = gguf_architecture(*hf_.architecture);
  require<CheckpointError>(!hf_.architecture->gguf.untied || file_.find(kGgufHead) != nullptr, here,
                           " has no tensor \"", kGgufHead, "\", without which llama.cpp loads no model of type ", type,
                           ": the file is cut, or its keys are another model's");
  std::set<std::string> used;
  for (const auto& [name, shape] : expected) {
    const auto* found = file_.find(name);
    require<CheckpointError>(found != nullptr, here, " has no tensor \"", name, "\" ", shape,
                             ", which a model of type ", type,
                             " with these keys has: the file is cut, or its keys are another model's");
    require<CheckpointError>(without_ones(shape_of(found->info)) == without_ones(shape), here, ": \"", name, "\" is ",
                             shape_of(found->info), ", but its keys ask for ", shape);
    used.insert(name);
    const std::string_view stored = found->info.type->name;
    if (is_table_of_experts(name)) {
      require<CheckpointError>(stored == kTableType, here, ": \"", name, "\" is ", stored, ", not ", kTableType,
                               ": it must hold the numbers of each token's experts");
      continue;
    }
    require<CheckpointError>(std::ranges::find(kReadTypes, stored) != std::end(kReadTypes), here, ": \"", name,
                             "\" is ", stored, "; Witan reads ", fmt::format("{}", fmt::join(kReadTypes, ", ")),
                             ": convert the original model with convert_hf_to_gguf.py --outtype bf16 (or q8_0), or "
                             "import its Hugging Face folder");
  }
  std::string left_over;
  for (const auto& tensor : file_.tensors()) {
    if (used.contains(tensor.info.name)) continue;
    if (tensor.info.name == kRopeFactors)
      note(tensor.info.name, "computed by the model: nothing to keep");
    else if (is_of_borrowed_keys(tensor.info.name))
      note(tensor.info.name, "for keys and values that the layer borrows: read by no program, and left out");
    else if (!is_spare_mtp(tensor, mtp))
      left_over += cat(left_over.empty() ? "\"" : ", \"", clipped(tensor.info.name), "\"");
  }
  require<CheckpointError>(left_over.empty(), here, " has tensors that a model of type ", type,
                           " with these keys has no place for: ", clipped(left_over, 600), ". They would be lost");
}

// A tensor that every file holds in float32 is judged by its values instead of its dtype: whether Witan's, in bfloat16,
// are the file's again.
bool GgufWeights::is_held_by(Element wide, const std::string& name) {
  if (is_table_of_experts(name)) return true;
  const HeldTensor held = hold(name);
  if (holds(wide, held.type)) return true;
  const auto* placed = file_.find(name);
  if (wide != Element::bf16 || held.type != Element::f32 ||
      !is_always_f32(name, static_cast<int>(placed->info.dims.size())))
    return false;
  const ValueMap map = maps_.at(name);
  for (size_t at = 0; at < held.bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, held.bytes.data() + at, sizeof value);
    const float own = bf16(static_cast<float>(mapped(map, value))),
                rounded = static_cast<float>(mapped(inverse_of(map), own));
    if (std::memcmp(&rounded, &value, sizeof value) != 0) return false;
  }
  return true;
}

std::vector<ForeignWeights::Source> GgufWeights::sources() const {
  std::vector<Source> all;
  for (const auto& tensor : file_.tensors())
    all.push_back({tensor.info.name, std::string(tensor.info.type->name), shape_of(tensor.info), tensor.bytes});
  std::ranges::sort(all, {}, &Source::name);
  return all;
}

HeldTensor GgufWeights::hold(const std::string& name) {
  const auto* placed = file_.find(name);
  return {element_from_name(placed->info.type->name, where()), placed->bytes};
}

void GgufWeights::release(const Link& link) {
  for (const SharedBox& piece : link.pieces) release_pages(file_.find(piece.from.name)->bytes);
}

}  // namespace witan
