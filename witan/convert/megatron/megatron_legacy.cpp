#include <algorithm>
#include <cstdio>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan {
namespace {

// Splits "mlp.experts.linear_fc1.weight3" or "mlp.experts.local_experts.3.linear_fc1.weight" into the name of the
// tensor of all experts and 3.
std::optional<std::pair<std::string, int64_t>> one_expert(const std::string& name) {
  constexpr std::string_view kLocalExperts = "mlp.experts.local_experts.", kGrouped = "mlp.experts.linear_fc",
                             kAll = "mlp.experts.experts.";
  if (const size_t at = name.find(kLocalExperts); at != std::string::npos) {
    const auto parsed = leading_number(std::string_view(name).substr(at + kLocalExperts.size()));
    if (!parsed || !parsed->second.starts_with('.')) return std::nullopt;
    return std::pair(cat(name.substr(0, at), kAll, parsed->second.substr(1)), parsed->first);
  }
  const size_t at = name.find(kGrouped), digits = name.find_last_not_of("0123456789") + 1;
  if (at == std::string::npos || digits == name.size()) return std::nullopt;
  const auto parsed = leading_number(std::string_view(name).substr(digits));
  if (!parsed) return std::nullopt;
  return std::pair(cat(name.substr(0, at), kAll, name.substr(at + 12, digits - at - 12)), parsed->first);
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

std::string legacy_file(int64_t tensor, int64_t stage, int64_t expert, bool stages, bool experts) {
  char text[64];
  int at = std::snprintf(text, sizeof text, "mp_rank_%02d", static_cast<int>(tensor));
  if (stages) at += std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "_%03d", static_cast<int>(stage));
  if (experts) std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "_%03d", static_cast<int>(expert));
  return cat(text, '/', kMegatronRankFile);
}

// The dim along which tensor parallelism divides a tensor, or -1; gate and up are divided separately.
struct TensorPart {
  int dim = -1;
  bool two_blocks = false;
};
TensorPart tensor_part(const std::string& name, bool gated) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("layernorm") || has("layer_norm") || has("router") || has("_down_proj")) return {};
  if (has("linear_fc1")) return {0, gated};
  for (const char* rows :
       {"word_embeddings.weight", "output_layer.weight", "linear_qkv.", "linear_q_proj.", "linear_q_up_proj.",
        "linear_kv_up_proj.", "softmax_offset", ".in_proj.", ".conv1d.", "mixer.norm."})
    if (has(rows)) return {0};
  for (const char* of_heads : {".A_log", ".D", ".dt_bias"})
    if (name.ends_with(of_heads)) return {0};
  const bool columns = has("linear_proj.weight") || has("linear_fc2.weight") || has(".out_proj.weight");
  return {columns ? 1 : -1};
}

// The parts that the input projection or the convolution of a recurrent mixer joins, with their rows on one rank.
using JoinedParts = std::vector<std::pair<std::string_view, int64_t>>;

// The layout of the ranks that wrote a legacy checkpoint, and what they divide.
struct LegacyRanks {
  int64_t tensor = 1, stages = 1, expert = 1, experts = 0;
  bool gated = false;
  JoinedParts of_mamba, of_delta;  // of input projections

  LegacyRanks(const PickleMembers& args, const std::string& where) {
    const auto count = [&](const char* key, int64_t otherwise) {
      const auto found = args.find(key);
      if (found == args.end() || found->second->is(PickleValue::Kind::none)) return otherwise;
      require<CheckpointError>(found->second->is(PickleValue::Kind::integer) && found->second->integer >= 1 &&
                                   found->second->integer <= (1 << 16),
                               where, ": args.", key, " is not a number from 1 to 65536");
      return found->second->integer;
    };
    tensor = count("tensor_model_parallel_size", 1);
    stages = count("pipeline_model_parallel_size", 1);
    expert = count("expert_model_parallel_size", 1);
    experts = count("num_experts", 0);
    const auto swiglu = args.find("swiglu");
    gated = swiglu != args.end() && swiglu->second->integer != 0;
    const int64_t channels = count("mamba_head_dim", 64), of_group = count("mamba_state_dim", 128);
    const int64_t heads = count("mamba_num_heads", 2 * count("hidden_size", 1) / channels) / tensor,
                  groups = count("mamba_num_groups", 8) / tensor;
    of_mamba = {{"z", heads * channels},
                {"x", heads * channels},
                {"B", groups * of_group},
                {"C", groups * of_group},
                {"dt", heads}};
    const int64_t values = count("linear_num_value_heads", 1) / tensor,
                  keys = count("linear_num_key_heads", 1) / tensor * count("linear_key_head_dim", 1),
                  of_values = values * count("linear_value_head_dim", 1);
    of_delta = {{"query", keys},  {"key", keys},    {"value", of_values},
                {"z", of_values}, {"beta", values}, {"alpha", values}};
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

  // The parts of this tensor; empty if it is one.
  JoinedParts parts_of(const std::string& name) const {
    const bool projection = name.ends_with(".in_proj.weight");
    if (!projection && !name.ends_with(".conv1d.weight") && !name.ends_with(".conv1d.bias")) return {};
    const bool mamba = name.find(".mixer.") != std::string::npos;
    if (projection) return mamba ? of_mamba : of_delta;
    if (mamba) return {of_mamba.begin() + 1, of_mamba.begin() + 4};
    return {of_delta.begin(), of_delta.begin() + 3};
  }

  std::string file(int64_t rank, int64_t stage, int64_t of_experts) const {
    return legacy_file(rank, stage, of_experts, stages > 1, expert > 1);
  }
};

class LegacyReader {
 public:
  LegacyReader(MegatronFiles& files, const LegacyRanks& ranks, MegatronContents& contents)
      : files_(files), ranks_(ranks), contents_(contents) {}

  void read() {
    int64_t layers = 0;
    for (int64_t stage = 0; stage < ranks_.stages; ++stage) {
      int64_t of_stage = 0;
      for (int64_t expert = 0; expert < ranks_.expert; ++expert)
        for (int64_t rank = 0; rank < ranks_.tensor; ++rank)
          of_stage = std::max(of_stage, read_rank(rank, stage, expert, layers));
      layers += of_stage;
    }
  }

 private:
  // Reads one file, whose first layer is number `layers`. Returns its number of layers.
  int64_t read_rank(int64_t rank, int64_t stage, int64_t expert, int64_t layers) {
    const std::string in = ranks_.file(rank, stage, expert);
    const TorchFile& held = files_.torch(in);
    const std::string where = files_.path_of(in).string();
    for (const auto& [key, value] : held.root().members())
      if (key != "model")
        contents_.others[cat(in, ": ", key)] = key == "args" ? "read for the configuration" : megatron_note_of(key);
    const PickleValue* model = held.root().find("model");
    require<CheckpointError>(model != nullptr && model->find("language_model") == nullptr, where,
                             " holds no model of Megatron-Core under \"model\": older models are not read");
    int64_t found = 0;
    for (const auto& [key, value] : model->members()) {
      std::string name(key);
      const auto placed = held.tensor(*value, name);
      if (!placed || name.find("_extra_state") != std::string::npos) {
        contents_.others[cat(in, ": ", name)] = megatron_note_of(name);
        continue;
      }
      if (name.starts_with(kMegatronDecoderLayers))
        if (const auto layer = leading_number(std::string_view(name).substr(kMegatronDecoderLayers.size()));
            layer && layer->first < (1 << 20)) {
          found = std::max(found, layer->first + 1);
          name = cat(kMegatronDecoderLayers, layers + layer->first, layer->second);
        }
      add_parts(rank, expert, name, *placed, where);
    }
    return found;
  }

  // Checkpoints of the other format hold the parts of a joined tensor apart.
  void add_parts(int64_t rank, int64_t expert, const std::string& name, const PlacedTensor& placed,
                 const std::string& where) {
    const JoinedParts parts = ranks_.parts_of(name);
    if (parts.empty()) return add(rank, expert, name, placed, where);
    int64_t rows = 0;
    for (const auto& part : parts) rows += part.second;
    const Shape& shape = placed.info.shape;
    require<CheckpointError>(shape.dims() > 0 && shape[0] == rows, where, ": \"", clipped(name), "\" ", shape,
                             " has not the ", rows, " rows of a rank that its arguments ask for");
    const size_t row = rows == 0 ? 0 : placed.bytes.size() / static_cast<size_t>(rows);
    size_t first = 0;
    for (const auto& [part, count] : parts) {
      PlacedTensor one = placed;
      one.info.shape = shape.with(0, count);
      one.bytes = placed.bytes.subspan(first * row, static_cast<size_t>(count) * row);
      add(rank, expert, cat(name, '.', part), one, where);
      first += static_cast<size_t>(count);
    }
  }

  // Adds a rank's part of a tensor. An expert is a box of [E, …]; of a divided tensor a rank has one box, and of gate
  // and up two.
  void add(int64_t rank, int64_t expert, const std::string& name, const PlacedTensor& placed,
           const std::string& where) {
    const auto of_expert = one_expert(name);
    const TensorPart part = tensor_part(name, ranks_.gated);
    if (!of_expert && expert > 0) return;  // equal to the first of these ranks'
    if (part.dim < 0 && rank > 0) return;  // replicated
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
      shape = shape.with(part.dim, shape[part.dim] * ranks_.tensor);
      chunks.clear();
      for (int64_t block = 0; block < blocks; ++block)
        chunks.push_back({zeros.with(part.dim, (block * ranks_.tensor + rank) * own), sizes,
                          placed.bytes.subspan(bytes * static_cast<size_t>(block), bytes)});
    }
    for (MegatronChunk& chunk : chunks) {
      if (!of_expert) {
        contents_.tensors.add(name, placed.info.dtype, shape, std::move(chunk));
        continue;
      }
      require<CheckpointError>(shape.dims() < Shape::kMostDims && of_expert->second < ranks_.experts, where, ": \"",
                               clipped(name), "\" is of an expert beyond args.num_experts");
      contents_.tensors.add(of_expert->first, placed.info.dtype, with_first(ranks_.experts, shape),
                            {with_first(expert * (ranks_.experts / ranks_.expert) + of_expert->second, chunk.offsets),
                             with_first(1, chunk.sizes), chunk.bytes});
    }
  }

  MegatronFiles& files_;
  const LegacyRanks& ranks_;
  MegatronContents& contents_;
};

}  // namespace

void read_legacy(MegatronFiles& files, MegatronContents& contents) {
  std::string first;
  for (const auto& [stages, experts] : {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}})
    if (const std::string name = legacy_file(0, 0, 0, stages, experts); files.has(name)) first = name;
  const std::string here = files.folder().string();
  require<CheckpointError>(!first.empty(), here, " has neither ", kMegatronDistMetadata, " nor mp_rank_00/",
                           kMegatronRankFile, ": give a folder of one iteration, or the one with ", kMegatronTracker);
  contents.arguments = files.torch(first).root().find("args");
  const LegacyRanks ranks(megatron_arguments(contents.arguments, here), files.path_of(first).string());
  LegacyReader(files, ranks, contents).read();
}

}  // namespace witan
