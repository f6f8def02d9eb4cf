#include "witan/convert/hf/hf_weights.h"

#include <algorithm>
#include <charconv>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

std::string read_config_text(const fs::path& folder) {
  const fs::path path = folder / kHfConfig;
  std::error_code error;
  require<CheckpointError>(fs::is_regular_file(path, error), folder.string(), " has no ", kHfConfig,
                           ": give the folder of a model as Hugging Face's transformers saves it");
  return read_file(path, uint64_t{16} << 20);
}

// Returns 61 for "model.layers.61.eh_proj.weight", and -1 outside of layers.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kMark = "layers.";
  const size_t at = name.find(kMark);
  if (at == std::string_view::npos) return -1;
  const std::string_view rest = name.substr(at + kMark.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  return error == std::errc() ? layer : -1;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    text += (i == 0 ? "\"" : ", \"") + clipped(names[i]) + '"';
  if (names.size() > kNamed) text += cat(" and ", names.size() - kNamed, " more");
  return text;
}

}  // namespace

HfWeights::HfWeights(const fs::path& folder, MtpLayers mtp)
    : folder_(folder), hf_(read_hf_config(read_config_text(folder), (folder / kHfConfig).string())) {
  if (hf_.model.attention.max_position_embeddings == 0 && hf_.model.attention.learned_positions())
    hf_.model.attention.max_position_embeddings = hf_.positions;
  const auto has = [&](const std::string& name) { return folder_.find(quantised_.stored_name(name)) != nullptr; };
  if (hf_.text_decoder) {
    change_style() = text_decoder_style(*hf_.architecture, has);
    require<CheckpointError>(!style().prefix.empty(), folder_.path().string(),
                             " has no text decoder whose tensors Witan knows: a vision-language model has them under "
                             "\"model.language_model.\", \"language_model.model.\" or \"",
                             hf_.architecture->prefix, "\"");
  }
  const NameStyle of_text{.prefix = std::string(hf_.architecture->prefix)};
  const auto is_beside = [&](const auto& tensor) {
    const std::string_view side = hf_.architecture->side;
    return (!side.empty() && tensor.first.starts_with(side)) ||
           is_of_borrowed_keys(*hf_.architecture, of_text, hf_.model, tensor.first);
  };
  if (!hf_.text_decoder && std::ranges::any_of(folder_.tensors(), is_beside)) change_style().prefix = of_text.prefix;
  if (mtp == MtpLayers::take && holds_mtp_layers()) hf_.model.mtp_num_layers = hf_.mtp_layers;
  require_tensors_for(hf_.model.num_layers + hf_.model.mtp_num_layers, "layers");
  list_tensors(hf_.model);
  const Architecture& architecture = *hf_.architecture;
  change_style() = style_of(architecture, has, tensors(), style());
  if (holds_experts_in_out()) change_style().storage = ExpertStorage::fused_in_out;
  if (style().storage == ExpertStorage::single) require_tensors_for(hf_.model.moe.num_experts, "experts");
  for (const auto& [name, shape] : other_tensors(architecture, style(), tensors(), hf_.model))
    used_.emplace(quantised_.stored_name(name), shape);
  std::vector<Link> links = link_model(architecture, style(), tensors(), hf_.model);
  for (Link& link : links)
    for (SharedBox& piece : link.pieces) piece.from.name = quantised_.stored_name(piece.from.name);
  set_links(std::move(links));
  check_tensors(mtp);
  choose_dtype(hf_.model, [&](Element by, const std::string& source) {
    return is_table_of_experts(source) || holds(by, element_of_source(source));
  });
  check_tables_of_experts(hf_.model.moe.num_experts);
}

// Checked before tensors are listed, since a large number in a config.json would otherwise take time and memory without
// bound.
void HfWeights::require_tensors_for(int64_t count, const char* of_what) const {
  require<CheckpointError>(count <= static_cast<int64_t>(folder_.tensors().size()), folder_.path().string(), " has ",
                           folder_.tensors().size(), " tensors, fewer than the ", count, " ", of_what, " that its ",
                           kHfConfig, " asks for: files are missing, or ", kHfConfig, " is another model's");
}

// transformers writes num_nextn_predict_layers even though it leaves the layers' weights out.
bool HfWeights::holds_mtp_layers() const {
  return hf_.mtp_layers > 0 && std::ranges::any_of(folder_.tensors(), [&](const auto& tensor) {
           return !is_side_tensor(*hf_.architecture, style(), tensor.first) &&
                  layer_of(tensor.first) >= hf_.model.num_layers;
         });
}

// transformers, too, transposes experts whose shape is not that of its model.
bool HfWeights::holds_experts_in_out() const {
  if (style().storage != ExpertStorage::fused || !has_fused_in_out(*hf_.architecture)) return false;
  return std::ranges::any_of(other_tensors(*hf_.architecture, style(), tensors(), hf_.model), [&](const auto& other) {
    const PlacedTensor* found = folder_.find(other.first);
    return found != nullptr && other.second.dims() == 3 && found->info.shape != other.second;
  });
}

void HfWeights::check_tensors(MtpLayers mtp) {
  const std::string here = folder_.path().string();
  for (const auto& [name, shape] : used_) {
    const PlacedTensor* found = folder_.find(name);
    require<CheckpointError>(found != nullptr, here, " has no tensor \"", name, "\" ", shape,
                             ", which a model of type ", hf_.architecture->model_type, " with this ", kHfConfig,
                             " has: files are missing, or ", kHfConfig, " is another model's");
    require<CheckpointError>(quantised_.agrees(*found, shape), (folder_.path() / folder_.shard_of(name)).string(),
                             ": \"", name, "\" is ", found->info.shape, ", but ", kHfConfig, " asks for ", shape,
                             ": one of the two is another model's");
    const Element element = element_of_source(name);  // refuses unsupported dtypes
    require<CheckpointError>((element == Element::i64) == is_table_of_experts(name) && element != Element::i32,
                             (folder_.path() / folder_.shard_of(name)).string(), ": \"", name, "\" is ",
                             name_of(element), ": weights are floating-point numbers, and tables of experts I64");
  }
  std::vector<std::string> left_over;
  for (const auto& [name, tensor] : folder_.tensors()) account_for(name, tensor, mtp, left_over);
  if (style().mtp_copies) check_mtp_copies();
  require<CheckpointError>(
      left_over.empty(), here, " has ", left_over.size(), left_over.size() == 1 ? " tensor" : " tensors",
      " that a model of type ", hf_.architecture->model_type, " with this ", kHfConfig,
      " has no place for: ", listed(left_over), ". They would be lost; ", kHfConfig, " must be of the same model");
}

void HfWeights::account_for(const std::string& name, const PlacedTensor& tensor, MtpLayers mtp,
                            std::vector<std::string>& left_over) {
  if (used_.contains(name) || is_companion(name)) return;
  if (is_kept_aside(name)) {
    note(name, is_side_tensor(*hf_.architecture, style(), name)
                   ? "not of the text decoder: kept as it is, and exported again"
                   : "for keys and values that the layer borrows: kept as it is, and exported again");
  } else if (is_computed(*hf_.architecture, name)) {
    note(name, "computed by the model: nothing to keep");
  } else if (name == head_name(style()) && !hf_.model.untie_embeddings_and_output_weights) {
    check_tied_copy(tensor);
    change_style().tied_copy = true;
    note(name, "equal to the tied embedding, which it is again");
  } else if (is_mtp_copy(name, tensor)) {
    change_style().mtp_copies = true;
  } else if (mtp == MtpLayers::leave_out && layer_of(name) >= hf_.model.num_layers && hf_.architecture->mtp_layers) {
    note(name, "of multi-token prediction, left out as asked (--without-mtp)");
  } else {
    left_over.push_back(name);
  }
}

bool HfWeights::is_kept_aside(const std::string& name) const {
  return !used_.contains(name) && (is_side_tensor(*hf_.architecture, style(), name) ||
                                   is_of_borrowed_keys(*hf_.architecture, style(), hf_.model, name));
}

// Witan's modules of multi-token prediction read the model's own embedding and head.
bool HfWeights::is_mtp_copy(const std::string& name, const PlacedTensor& tensor) {
  for (const auto& [copy, of] : mtp_copies(*hf_.architecture, style(), hf_.model)) {
    if (name != copy) continue;
    const PlacedTensor* own = folder_.find(of);
    require<CheckpointError>(
        own != nullptr && tensor.info.dtype == own->info.dtype && std::ranges::equal(tensor.bytes, own->bytes),
        folder_.path().string(), ": \"", name, "\" is not equal to \"", of,
        "\": Witan's modules of multi-token prediction share the model's embedding and head; "
        "leave them out with --without-mtp");
    note(name, cat("equal to \"", of, "\", which it is again"));
    return true;
  }
  return false;
}

// An export writes all copies or none, so that all must be there.
void HfWeights::check_mtp_copies() const {
  for (const auto& [copy, of] : mtp_copies(*hf_.architecture, style(), hf_.model))
    require<CheckpointError>(folder_.find(copy) != nullptr, folder_.path().string(), " has no tensor \"", copy,
                             "\", though it has others like it: files are missing. Leave multi-token prediction out "
                             "with --without-mtp");
}

// Whether the tensor holds the scales or the shape of a linked tensor.
bool HfWeights::is_companion(const std::string& name) {
  const auto of = HfQuantised::dequantised_by(name);
  if (!of || !used_.contains(*of)) return false;
  note(name, name.ends_with("_shape") ? "shape of a quantised tensor" : "scales of a quantised tensor");
  return true;
}

void HfWeights::check_tied_copy(const PlacedTensor& head) {
  const std::string embedding = embedding_name(*hf_.architecture, style());
  const PlacedTensor& tied = *folder_.find(embedding);
  require<CheckpointError>(head.info.dtype == tied.info.dtype && std::ranges::equal(head.bytes, tied.bytes),
                           folder_.path().string(), ": ", kHfConfig, " ties the output layer to the embedding, but \"",
                           head_name(style()), "\" is not equal to \"", embedding,
                           "\": with tie_word_embeddings = false the two are kept apart");
}

// The dtype after dequantising.
Element HfWeights::element_of_source(const std::string& name) const {
  return quantised_.element_of(*folder_.find(name), used_.at(name));
}

std::vector<ForeignWeights::Source> HfWeights::sources() const {
  std::vector<Source> all;
  for (const auto& [name, tensor] : folder_.tensors())
    all.push_back({name, tensor.info.dtype, tensor.info.shape, tensor.bytes});
  return all;
}

std::vector<PlacedTensor> HfWeights::side_tensors() const {
  std::vector<PlacedTensor> all;
  for (const auto& [name, tensor] : folder_.tensors())
    if (is_kept_aside(name)) all.push_back(tensor);
  return all;
}

HeldTensor HfWeights::hold(const std::string& name) {
  const PlacedTensor& tensor = *folder_.find(name);
  const Element element = element_of_source(name);
  if (!quantised_.is_quantised(tensor)) return {element, tensor.bytes};
  auto known = dequantised_.find(name);
  if (known == dequantised_.end())
    known = dequantised_.emplace(name, quantised_.dequantise(tensor, used_.at(name))).first;
  return {element, known->second};
}

void HfWeights::release(const Link& link) {
  for (const SharedBox& piece : link.pieces) {
    release_pages(folder_.find(piece.from.name)->bytes);
    dequantised_.erase(piece.from.name);
  }
}

}  // namespace witan
