#include "witan/convert/megatron_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {
namespace {

using Kind = PickleValue::Kind;
using Members = std::map<std::string_view, const PickleValue*>;

constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
constexpr const char* kDistMetadata = ".metadata";
constexpr const char* kCommon = "common.pt";
constexpr const char* kRankFile = "model_optim_rng.pt";
constexpr std::string_view kDecoderLayers = "decoder.layers.";

bool holds_checkpoint(const fs::path& folder) {
  std::error_code none;
  if (fs::is_regular_file(folder / kDistMetadata, none)) return true;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.path().filename().string().starts_with("mp_rank_")) return true;
  return false;
}

fs::path latest_iteration(const fs::path& folder) {
  std::error_code none;
  if (holds_checkpoint(folder) || !fs::is_regular_file(folder / kTracker, none)) return folder;
  std::string text = read_file(folder / kTracker, 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text == "release") return folder / text;
  require<CheckpointError>(
      !text.empty() && text.size() < 12 && text.find_first_not_of("0123456789") == std::string::npos,
      (folder / kTracker).string(), ": \"", clipped(text), "\" is no iteration");
  return folder / cat("iter_", std::string(text.size() < 7 ? 7 - text.size() : 0, '0'), text);
}

// "12.mlp.router.weight" as 12 and ".mlp.router.weight"; nothing when it begins with no number.
std::optional<std::pair<int64_t, std::string_view>> leading_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  return std::pair(number, text.substr(static_cast<size_t>(end - text.data())));
}

// Transformer Engine fuses norms into the linear layers behind them.
std::string with_norms_apart(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kFused[] = {
      {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
      {"self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."},
      {"self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."},
      {"mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."}};
  for (const auto& [fused, apart] : kFused)
    if (const size_t at = name.find(fused); at != std::string::npos) name.replace(at, fused.size(), apart);
  return name;
}

// Of "mlp.experts.linear_fc1.weight3" or "mlp.experts.local_experts.3.linear_fc1.weight": 3, and the name of all
// experts' tensor.
std::optional<std::pair<std::string, int64_t>> one_expert(const std::string& name) {
  constexpr std::string_view kLocal = "mlp.experts.local_experts.", kGrouped = "mlp.experts.linear_fc",
                             kAll = "mlp.experts.experts.";
  if (const size_t at = name.find(kLocal); at != std::string::npos) {
    const auto parsed = leading_number(std::string_view(name).substr(at + kLocal.size()));
    if (!parsed || !parsed->second.starts_with('.')) return std::nullopt;
    return std::pair(cat(name.substr(0, at), kAll, parsed->second.substr(1)), parsed->first);
  }
  const size_t at = name.find(kGrouped), digits = name.find_last_not_of("0123456789") + 1;
  if (at == std::string::npos || digits == name.size()) return std::nullopt;
  const auto parsed = leading_number(std::string_view(name).substr(digits));
  if (!parsed) return std::nullopt;
  return std::pair(cat(name.substr(0, at), kAll, name.substr(at + 12, digits - at - 12)), parsed->first);
}

Shape without_first(const Shape& shape) {
  Shape rest;
  for (int dim = 1; dim < shape.dims(); ++dim) rest.append(shape[dim]);
  return rest;
}
Shape with_first(int64_t size, const Shape& rest) {
  Shape shape;
  shape.append(size);
  for (int dim = 0; dim < rest.dims(); ++dim) shape.append(rest[dim]);
  return shape;
}
Shape no_offsets(const Shape& shape) {
  Shape zeros;
  for (int dim = 0; dim < shape.dims(); ++dim) zeros.append(0);
  return zeros;
}

// The arguments of what torch.distributed.checkpoint describes a checkpoint by, in their order.
std::vector<std::string_view> arguments_of(std::string_view name) {
  if (name == "Metadata") return {"state_dict_metadata", "planner_data", "storage_data"};
  if (name == "MetadataIndex") return {"fqn", "offset", "index"};
  if (name == "_StorageInfo") return {"relative_path", "offset", "length"};
  if (name == "TensorStorageMetadata") return {"properties", "size", "chunks"};
  if (name == "ChunkStorageMetadata") return {"offsets", "sizes"};
  return {};
}

// The attributes of an object, that were given to what makes it or set later.
Members attributes(const PickleValue* value, std::string_view name, const std::string& where) {
  require<CheckpointError>(
      value && value->callee() && value->callee()->is(Kind::global) && value->callee()->name == name, where, ": a ",
      name, " is expected: copy the checkpoint again");
  if (value->state) return value->state->members();
  Members members;
  const std::vector<std::string_view> names = arguments_of(name);
  const auto& given = value->items[1]->items;
  for (size_t i = 0; i < std::min(names.size(), given.size()); ++i) members[names[i]] = given[i];
  return members;
}
const PickleValue& attribute(const Members& members, std::string_view key, const std::string& where) {
  const auto found = members.find(key);
  require<CheckpointError>(found != members.end(), where, " has no \"", key, "\": copy the checkpoint again");
  return *found->second;
}

std::string note_of_other(std::string_view name) {
  if (name.find("_extra_state") != std::string_view::npos) return "what a layer scales FP8 by, no weight";
  if (name.starts_with("optimizer.")) return "state of the optimizer, which a run of weights alone begins anew";
  return "state of the program that wrote it, no weight";
}

std::string legacy_file(int64_t tensor, int64_t stage, int64_t expert, bool stages, bool experts) {
  char text[64];
  int at = std::snprintf(text, sizeof text, "mp_rank_%02d", static_cast<int>(tensor));
  if (stages) at += std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "_%03d", static_cast<int>(stage));
  if (experts) std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "_%03d", static_cast<int>(expert));
  return cat(text, '/', kRankFile);
}

// A rank's part of a tensor that tensor parallelism divides: over which dim, or -1; gate and up are divided each.
struct TensorPart {
  int dim = -1;
  bool two_blocks = false;
};
TensorPart tensor_part(const std::string& name, bool gated) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("layernorm") || has("layer_norm") || has("router") || has("_down_proj")) return {};
  if (has("linear_fc1")) return {0, gated};
  for (const char* rows : {"word_embeddings.weight", "output_layer.weight", "linear_qkv.", "linear_q_proj.",
                           "linear_q_up_proj.", "linear_kv_up_proj.", "softmax_offset"})
    if (has(rows)) return {0};
  const bool columns = has("linear_proj.weight") || has("linear_fc2.weight");
  return {columns ? 1 : -1};
}

}  // namespace

bool is_megatron_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_directory(folder, none) && (fs::is_regular_file(folder / kTracker, none) || holds_checkpoint(folder));
}

MegatronFolder::MegatronFolder(const fs::path& folder) : path_(latest_iteration(folder)) {
  std::error_code none;
  require<CheckpointError>(fs::is_directory(path_, none), path_.string(), " is missing, which ",
                           (folder / kTracker).string(), " names: copy that folder too");
  if (fs::is_regular_file(path_ / kDistMetadata, none))
    open_torch_dist();
  else
    open_legacy();
  check_chunks();
}

const MappedFile& MegatronFolder::map(const std::string& name) {
  if (const auto known = mapped_.find(name); known != mapped_.end()) return known->second;
  const fs::path path = path_ / name;
  std::error_code none;
  require<CheckpointError>(fs::is_regular_file(path, none), path.string(),
                           " is missing: copy the whole folder of the checkpoint");
  return mapped_.emplace(name, MappedFile(path)).first->second;
}

const TorchFile& MegatronFolder::file(const std::string& name) {
  if (const auto known = files_.find(name); known != files_.end()) return known->second;
  return files_.emplace(name, TorchFile(map(name).bytes(), (path_ / name).string())).first->second;
}

std::map<std::string_view, const PickleValue*> MegatronFolder::arguments() const {
  require<CheckpointError>(
      arguments_ != nullptr, path_.string(),
      " does not say which model it is of: it has no \"args\", which Megatron-LM's own training writes into ", kCommon,
      " or ", kRankFile,
      ". Convert it to a Hugging Face folder instead: Megatron-Bridge's AutoBridge has export_ckpt()");
  return attributes(arguments_, "Namespace", path_.string());
}

void MegatronFolder::open_common() {
  std::error_code none;
  if (!fs::is_regular_file(path_ / kCommon, none)) return;
  const PickleValue& root = file(kCommon).root();
  arguments_ = root.find("args");
  for (const auto& [key, value] : root.members())
    others_[cat(kCommon, ": ", key)] = key == "args" ? "read for the configuration" : note_of_other(key);
}

void MegatronFolder::open_torch_dist() {
  open_common();
  const std::string where = (path_ / kDistMetadata).string();
  const Pickle pickle(map(kDistMetadata).text(), where);
  const Members all = attributes(&pickle.root(), "Metadata", where);
  // Where each piece lies, by its tensor and its first element.
  std::map<std::pair<std::string_view, std::vector<int64_t>>, Members> places;
  const auto sizes_in = [](const Shape& shape) {
    std::vector<int64_t> sizes;
    for (int dim = 0; dim < shape.dims(); ++dim) sizes.push_back(shape[dim]);
    return sizes;
  };
  const PickleValue& storage = attribute(all, "storage_data", where);
  for (size_t i = 0; i + 1 < storage.items.size(); i += 2) {
    const Members index = attributes(storage.items[i], "MetadataIndex", where);
    const auto offset = index.find("offset");
    if (offset == index.end() || offset->second->is(Kind::none)) continue;  // no tensor
    places[{attribute(index, "fqn", where).text, sizes_in(shape_of_pickle(*offset->second, where))}] =
        attributes(storage.items[i + 1], "_StorageInfo", where);
  }
  for (const auto& [name, value] : attribute(all, "state_dict_metadata", where).members()) {
    const std::string here = cat(where, ": \"", clipped(name), '"');
    if (name.starts_with("optimizer.") || !value->callee() || value->callee()->name != "TensorStorageMetadata") {
      others_[std::string(name)] = note_of_other(name);
      continue;
    }
    const Members tensor = attributes(value, "TensorStorageMetadata", here);
    const Shape shape = shape_of_pickle(attribute(tensor, "size", here), here);
    for (const PickleValue* chunk : attribute(tensor, "chunks", here).items) {
      const Members box = attributes(chunk, "ChunkStorageMetadata", here);
      MegatronChunk made{shape_of_pickle(attribute(box, "offsets", here), here),
                         shape_of_pickle(attribute(box, "sizes", here), here),
                         {}};
      const auto place = places.find({name, sizes_in(made.offsets)});
      require<CheckpointError>(place != places.end(), here, " has a piece that is in no file");
      const std::string in(attribute(place->second, "relative_path", here).text);
      require<CheckpointError>(
          !in.empty() && in.front() != '.' && in.find('/') == std::string::npos && in.find('\0') == std::string::npos,
          here, " is said to be in ", clipped(in), ", which is no file of this folder");
      const auto transforms = place->second.find("transform_descriptors");
      require<CheckpointError>(
          transforms == place->second.end() || transforms->second->is(Kind::none) || transforms->second->items.empty(),
          here, " is compressed, which Witan does not read: save it without transforms");
      const auto bytes = map(in).bytes();
      const PickleValue &at = attribute(place->second, "offset", here),
                        &length = attribute(place->second, "length", here);
      require<CheckpointError>(
          at.is(Kind::integer) && length.is(Kind::integer) && at.integer >= 0 && length.integer >= 0 &&
              static_cast<uint64_t>(at.integer) <= bytes.size() &&
              static_cast<uint64_t>(length.integer) <= bytes.size() - static_cast<uint64_t>(at.integer),
          here, " lies beyond the end of ", in, ": copy that file again");
      const TorchFile piece(bytes.subspan(static_cast<size_t>(at.integer), static_cast<size_t>(length.integer)),
                            cat((path_ / in).string(), " at byte ", at.integer));
      const auto placed = piece.tensor(piece.root(), std::string(name));
      require<CheckpointError>(placed.has_value() && placed->info.shape == made.sizes, here, " has a piece in ", in,
                               " that is of other sizes than ", made.sizes);
      made.bytes = placed->bytes;
      add(std::string(name), placed->info.dtype, shape, std::move(made));
    }
  }
}

// What a legacy checkpoint says of the ranks that wrote it.
struct LegacyRanks {
  int64_t tensor = 1, stages = 1, expert = 1, experts = 0;
  bool gated = false;

  LegacyRanks(const Members& args, const std::string& where) {
    const auto count = [&](const char* key, int64_t otherwise) {
      const auto found = args.find(key);
      if (found == args.end() || found->second->is(Kind::none)) return otherwise;
      require<CheckpointError>(
          found->second->is(Kind::integer) && found->second->integer >= 1 && found->second->integer <= (1 << 16), where,
          ": args.", key, " is no number of ranks or experts");
      return found->second->integer;
    };
    tensor = count("tensor_model_parallel_size", 1);
    stages = count("pipeline_model_parallel_size", 1);
    expert = count("expert_model_parallel_size", 1);
    experts = count("num_experts", 0);
    const auto swiglu = args.find("swiglu");
    gated = swiglu != args.end() && swiglu->second->integer != 0;
    constexpr const char* kAnew =
        ". Let Megatron-LM write it anew: add --ckpt-convert-format torch_dist --ckpt-convert-save OUT to the command "
        "that loads it, and import OUT";
    require<CheckpointError>(count("virtual_pipeline_model_parallel_size", 1) == 1, where,
                             ": args.virtual_pipeline_model_parallel_size divides the stages of a legacy checkpoint "
                             "further, which is not read",
                             kAnew);
    require<CheckpointError>(count("expert_tensor_parallel_size", tensor) == tensor, where,
                             ": args.expert_tensor_parallel_size divides the experts of a legacy checkpoint otherwise "
                             "than the rest, which is not read",
                             kAnew);
  }

  std::string file(int64_t rank, int64_t stage, int64_t of_experts) const {
    return legacy_file(rank, stage, of_experts, stages > 1, expert > 1);
  }
};

void MegatronFolder::open_legacy() {
  std::error_code none;
  std::string first;
  for (const auto& [stages, experts] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}})
    if (const std::string name = legacy_file(0, 0, 0, stages, experts); fs::is_regular_file(path_ / name, none))
      first = name;
  require<CheckpointError>(!first.empty(), path_.string(), " has neither ", kDistMetadata, " nor mp_rank_00/",
                           kRankFile, ": give a folder of one iteration, or the one with ", kTracker);
  arguments_ = file(first).root().find("args");
  const LegacyRanks ranks(arguments(), (path_ / first).string());
  int64_t layers = 0;
  for (int64_t stage = 0; stage < ranks.stages; ++stage) {
    int64_t of_stage = 0;
    for (int64_t expert = 0; expert < ranks.expert; ++expert)
      for (int64_t rank = 0; rank < ranks.tensor; ++rank)
        of_stage = std::max(of_stage, open_legacy_rank(ranks, rank, stage, expert, layers));
    layers += of_stage;
  }
}

// One file; its layers are those from `layers` on. Returns how many it has.
int64_t MegatronFolder::open_legacy_rank(const LegacyRanks& ranks, int64_t rank, int64_t stage, int64_t expert,
                                         int64_t layers) {
  const std::string in = ranks.file(rank, stage, expert);
  const TorchFile& held = file(in);
  const std::string where = (path_ / in).string();
  for (const auto& [key, value] : held.root().members())
    if (key != "model") others_[cat(in, ": ", key)] = key == "args" ? "read for the configuration" : note_of_other(key);
  const PickleValue* model = held.root().find("model");
  require<CheckpointError>(model != nullptr && model->find("language_model") == nullptr, where,
                           " holds no model of Megatron-Core under \"model\": older models are not read");
  int64_t found = 0;
  for (const auto& [key, value] : model->members()) {
    std::string name(key);
    const auto placed = held.tensor(*value, name);
    if (!placed || name.find("_extra_state") != std::string::npos) {
      others_[cat(in, ": ", name)] = note_of_other(name);
      continue;
    }
    if (name.starts_with(kDecoderLayers))
      if (const auto layer = leading_number(std::string_view(name).substr(kDecoderLayers.size()));
          layer && layer->first < (1 << 20)) {
        found = std::max(found, layer->first + 1);
        name = cat(kDecoderLayers, layers + layer->first, layer->second);
      }
    add_legacy(ranks, rank, expert, name, *placed, where);
  }
  return found;
}

// A rank's part of a tensor: of an expert [E, …] of all experts, of a divided one a box or, of gate and up, two.
void MegatronFolder::add_legacy(const LegacyRanks& ranks, int64_t rank, int64_t expert, const std::string& name,
                                const PlacedTensor& placed, const std::string& where) {
  const auto of_expert = one_expert(name);
  const TensorPart part = tensor_part(name, ranks.gated);
  if (!of_expert && expert > 0) return;  // the same as of the first of these ranks
  if (part.dim < 0 && rank > 0) return;  // likewise
  Shape shape = placed.info.shape, sizes = shape;
  const Shape zeros = no_offsets(shape);
  std::vector<MegatronChunk> chunks = {{zeros, shape, placed.bytes}};
  if (part.dim >= 0) {
    const int64_t blocks = part.two_blocks ? 2 : 1;
    require<CheckpointError>(part.dim < shape.dims() && shape[part.dim] % blocks == 0, where, ": \"", clipped(name),
                             "\" ", shape, " cannot be a part of a tensor");
    const int64_t own = shape[part.dim] / blocks;
    const size_t bytes = placed.bytes.size() / static_cast<size_t>(blocks);
    sizes = shape.with(part.dim, own);
    shape = shape.with(part.dim, shape[part.dim] * ranks.tensor);
    chunks.clear();
    for (int64_t block = 0; block < blocks; ++block)
      chunks.push_back({zeros.with(part.dim, (block * ranks.tensor + rank) * own), sizes,
                        placed.bytes.subspan(bytes * static_cast<size_t>(block), bytes)});
  }
  for (MegatronChunk& chunk : chunks) {
    if (!of_expert) {
      add(name, placed.info.dtype, shape, std::move(chunk));
      continue;
    }
    require<CheckpointError>(shape.dims() < Shape::kMostDims && of_expert->second < ranks.experts, where, ": \"",
                             clipped(name), "\" is of an expert beyond args.num_experts");
    add(of_expert->first, placed.info.dtype, with_first(ranks.experts, shape),
        {with_first(expert * (ranks.experts / ranks.expert) + of_expert->second, chunk.offsets),
         with_first(1, chunk.sizes), chunk.bytes});
  }
}

void MegatronFolder::add(const std::string& full_name, const std::string& dtype, const Shape& shape,
                         MegatronChunk chunk) {
  std::string_view name = full_name;
  for (const std::string_view prefix : {"module.", "model."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (!name.starts_with(kDecoderLayers) || leading_number(name.substr(kDecoderLayers.size())) || shape.dims() < 2 ||
      chunk.sizes.dims() != shape.dims() || chunk.offsets.dims() != shape.dims()) {
    add_to_layer(std::string(name), dtype, shape, std::move(chunk));
    return;
  }
  const int64_t layers = chunk.sizes[0];
  require<CheckpointError>(layers <= (1 << 20), path_.string(), ": \"", clipped(name), "\" is of too many layers");
  for (int64_t layer = 0; layer < layers; ++layer) {
    const size_t bytes = chunk.bytes.size() / static_cast<size_t>(layers);
    add_to_layer(cat(kDecoderLayers, chunk.offsets[0] + layer, '.', name.substr(kDecoderLayers.size())), dtype,
                 without_first(shape),
                 {without_first(chunk.offsets), without_first(chunk.sizes),
                  chunk.bytes.subspan(static_cast<size_t>(layer) * bytes, bytes)});
  }
}

void MegatronFolder::add_to_layer(const std::string& given, const std::string& dtype, const Shape& shape,
                                  MegatronChunk chunk) {
  const std::string name = with_norms_apart(given);
  MegatronTensor& tensor = tensors_[name];
  if (tensor.chunks.empty()) tensor = {name, dtype, shape, {}};
  require<CheckpointError>(tensor.dtype == dtype && tensor.shape == shape, path_.string(), ": \"", clipped(name),
                           "\" is ", tensor.dtype, ' ', tensor.shape, " in one piece and ", dtype, ' ', shape,
                           " in another");
  tensor.chunks.push_back(std::move(chunk));
}

// Every element of a tensor is in exactly one of its pieces.
void MegatronFolder::check_chunks() const {
  constexpr size_t kMostChunks = 1 << 14;
  for (const auto& entry : tensors_) {
    const MegatronTensor& tensor = entry.second;
    const auto fails = [&](const char* what) {
      throw CheckpointError(
          cat(path_.string(), ": \"", clipped(tensor.name), "\" ", tensor.shape, what, ": copy the checkpoint again"));
    };
    if (tensor.chunks.size() > kMostChunks) fails(" is in too many pieces");
    int64_t elements = 0;
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      const MegatronChunk& a = tensor.chunks[i];
      if (a.sizes.dims() != tensor.shape.dims() || a.offsets.dims() != tensor.shape.dims())
        fails(" has a piece of other dims");
      for (int dim = 0; dim < tensor.shape.dims(); ++dim)
        if (a.offsets[dim] > tensor.shape[dim] || a.sizes[dim] > tensor.shape[dim] - a.offsets[dim])
          fails(" has a piece that is not within it");
      elements += a.sizes.elements();
      for (size_t j = 0; j < i; ++j) {
        const MegatronChunk& b = tensor.chunks[j];
        bool meet = a.sizes.elements() > 0 && b.sizes.elements() > 0;
        for (int dim = 0; dim < tensor.shape.dims(); ++dim)
          meet =
              meet && a.offsets[dim] < b.offsets[dim] + b.sizes[dim] && b.offsets[dim] < a.offsets[dim] + a.sizes[dim];
        if (meet) fails(" has elements that are in two pieces");
      }
    }
    if (elements != tensor.shape.elements()) fails(" has elements that are in no piece");
  }
}

}  // namespace witan
