// The description of another program's architecture: names of tensors, keys of config.json both ways, and llama.cpp's
// names and keys. Each source of this folder holds one family of architectures.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace witan {

struct HfReader;
struct HfWriter;
class GgufReader;
class GgufWriter;
struct ModelConfig;

// How files hold the experts of a layer. A folder holds all of its experts in one way.
enum class ExpertStorage : uint8_t {
  any,           // for rules that do not depend on it
  single,        // a tensor for each matrix of each expert
  fused,         // a tensor for all experts, as transformers v5 has them in memory
  fused_in_out,  // a tensor of the same name with matrices as [in, out], told from `fused` by its shape
  mxfp4,         // fused, in four bits with a scale for each 32
};

// How another program's tensor orders the rows of several of Witan's: one tensor after the other, or head by head, the
// rows of the first head of each, then those of the second.
enum class HeadGroups : uint8_t {
  one,
  query_heads,  // of attention
  key_heads,    // of Gated DeltaNet
};

// The place of a tensor of Witan's in a Hugging Face folder. Witan's matrices are [O, I] or, of experts, [E, O, I]; its
// vectors are [O] or [E, O].
struct TensorRule {
  // The name below "layers.N.", "mtp.K." or "mtp.K.block.", else the whole name. Modules of multi-token prediction are
  // numbered in the folder as layers after the model's own.
  std::string_view witan;
  // The name below Architecture::prefix, or the whole name after a slash, with {l} for the layer and {e} for the
  // expert; without {e} the tensor holds all experts.
  std::string_view other;
  // The rows of Witan's tensor: the part-th of `parts` equal blocks (gate and up are two).
  int part = 0, parts = 1;
  // Witan's tensors of the layer whose rows the other tensor holds one after another, this one among them, such as
  // queries, keys and values. Empty if it holds this one only.
  std::span<const std::string_view> joined = {};
  HeadGroups groups = HeadGroups::one;
  bool depthwise = false;    // the other tensor is [O, 1, I], as torch.nn.Conv1d has it
  bool transposed = false;   // the other tensor is [I, O]
  bool interleaved = false;  // row 2 f + g of the other tensor is row f of Witan's block g: gate and up alternate
  bool row = false;          // the other tensor is [1, O] where Witan's is a vector
  bool of_heads = false;     // and here [1, 1, O, 1]
  ExpertStorage storage = ExpertStorage::any;
};

// The head's matrix. It has no prefix; a tied model may hold it as a copy of the embedding.
inline constexpr std::string_view kHeadName = "lm_head.weight";

// How a GGUF file holds the up-projection of latent keys and values: as the model does, or, since 2025, divided into
// keys, transposed, and values.
enum class LatentStorage : uint8_t { any, joined, divided };

// How the rows of a tensor of Witan are ordered in a GGUF file.
enum class GgufRows : uint8_t {
  same,
  rope_pairs,  // the two channels of a head that rotate together are neighbours
  latent_keys,
  latent_values,
  tiled_heads,    // Gated DeltaNet's heads of values: the first of each head of keys, then the second of each …
  tiled_columns,  // of a matrix that reads these heads
};

// The shape in a GGUF file of a vector [O] of Witan's, or of a matrix [O, I].
enum class GgufShape : uint8_t {
  same,
  column,        // [O, 1]
  heads,         // [1, 1, O, 1], as Kimi Linear's folders have it
  taps,          // a matrix [O, I] of taps as [1, O, 1, I]
  state_groups,  // [G, O / G], with Mamba-2's G groups
};

// The values in a GGUF file of a tensor of Witan's.
enum class GgufValues : uint8_t {
  same,
  plus_one,   // of a norm's weight that is centred at zero
  minus_exp,  // -exp(x), of the logarithm of a decay
};

// The place of a tensor of Witan's in a GGUF file, by names below the layer.
struct GgufRule {
  std::string_view witan, other;
  int part = 0, parts = 1;              // of Witan's tensor
  int other_part = 0, other_parts = 1;  // of the file's
  GgufRows rows = GgufRows::same;
  LatentStorage latent = LatentStorage::any;
  // As in TensorRule.
  std::span<const std::string_view> joined = {};
  HeadGroups groups = HeadGroups::one;
  GgufValues values = GgufValues::same;
  GgufShape shape = GgufShape::same;
};

// An architecture in GGUF files.
struct GgufArchitecture {
  std::string_view name = {};               // general.architecture; empty if Witan reads and writes no such files
  std::string_view name_with_experts = {};  // the same of models with experts, if it differs
  std::vector<std::span<const GgufRule>> rules = {};
  // Whether a file with this name is of this architecture, if several share the name. Null: always.
  bool (*matches)(GgufReader&) = nullptr;
  void (*read)(GgufReader&) = nullptr;
  void (*write)(GgufWriter&) = nullptr;
  // llama.cpp needs an output matrix of its own: the file of a tied model holds the embedding twice.
  bool untied = false;
  // Changes a model to what llama.cpp computes from its file where that differs so little that it is exported anyway.
  // Null: nowhere.
  void (*approximate)(ModelConfig&) = nullptr;
};

struct Architecture {
  std::string_view model_type;  // in config.json
  std::string_view name;        // in "architectures" there
  std::string_view prefix;      // of all names but the head's; files saved from a bare model lack it
  std::vector<std::span<const TensorRule>> rules;
  // Names, with {l}, of tensors that other programs save beside weights and compute again; those of rotary positions
  // are known for every architecture.
  std::vector<std::string_view> computed = {};
  // JSON objects with the values of absent keys, those of transformers' configuration class; a later object overrides
  // an earlier one.
  std::vector<std::string_view> defaults = {};
  void (*read)(HfReader&) = nullptr;
  void (*write)(HfWriter&) = nullptr;
  bool partial_rotation = false;  // partial_rotary_factor has an effect
  // A vision-language model is tied if the object of its text decoder says so, too.
  bool tied_in_text = false;
  // Prefix of tensors of modules that the model does without, whether it begins with `prefix` or not. They are kept and
  // exported again, as those of towers are.
  std::string_view side = {};
  // Parts of names that transformers changes when it loads a folder: (in folders, in modules). PEFT's adapters have the
  // modules' names. Modules hold the experts of a layer as parameters.
  std::vector<std::pair<std::string_view, std::string_view>> modules = {};
  // The last part of the names of modules that PEFT refuses to adapt in models of this type.
  std::string_view peft_refuses = {};
  // Other model_types of a config.json that says the same.
  std::vector<std::string_view> other_types = {};
  bool mtp_layers = false;  // folders may hold layers of multi-token prediction after the model's own
  GgufArchitecture gguf = {};
};

// All architectures, in the order in which an export without a given architecture tries them.
std::span<const Architecture> architectures();
// By config.json's model_type, or one of other_types; null if Witan does not know it.
const Architecture* find_architecture(std::string_view model_type);
// The part that Witan lacks for models of this type, as "it has no …"; empty for types that it does not know.
std::string_view lacking_part(std::string_view model_type);

namespace models {
// The architectures of one source of this folder, which defines a function of its own name.
using Family = std::vector<Architecture>();
// All families; the build lists the sources (CMakeLists.txt).
std::vector<Family*> families();
}  // namespace models

}  // namespace witan
