// The architectures of Hugging Face transformers that Witan knows: how each names its tensors, as a table of rules.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/convert/links.h"
#include "witan/model/config.h"
#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

// How files hold the experts of a layer. A folder holds all of its experts in one way.
enum class ExpertStorage : uint8_t {
  any,     // of rules that do not depend on it
  single,  // a tensor for each matrix of each expert
  fused,   // a tensor for all experts, as transformers v5 has them in memory
  mxfp4,   // likewise, in four bits with a scale for each 32
};

// A matrix of Witan's is [O, I] or, of experts, [E, O, I]; a vector is [O] or [E, O].
struct TensorRule {
  // Below "layers.N.", "mtp.K." or "mtp.K.block." or, for what no layer has, the whole name. Modules of multi-token
  // prediction are layers of the other, behind its own.
  std::string_view witan;
  // With {l} for the layer and {e} for the expert; without {e} the tensor holds all experts.
  std::string_view other;
  // Which rows of Witan's tensor: the part-th of `parts` equal blocks (gate and up are two).
  int part = 0, parts = 1;
  // Witan's tensors of the layer whose rows are the other's outputs, one after another, this one among them: queries,
  // keys and values in one. Empty: this one alone.
  std::span<const std::string_view> joined = {};
  bool transposed = false;   // the other is [I, O]
  bool interleaved = false;  // row 2 f + g of the other is row f of Witan's block g: gate and up take turns
  ExpertStorage storage = ExpertStorage::any;
};

struct Architecture {
  std::string_view model_type;  // of config.json
  std::string_view name;        // of its "architectures"
  std::string_view prefix;      // of all names but the head's; files saved from a bare model lack it
  std::vector<std::span<const TensorRule>> rules;
  // Tensors that other programs save beside weights and compute again, but those of rotary positions. With {l}.
  std::vector<std::string_view> computed;
};

// All of them, in the order in which an export without further word tries them.
std::span<const Architecture> architectures();
// By config.json's model_type; null when there is none.
const Architecture* find_architecture(std::string_view model_type);

// The names that a file has.
struct NameStyle {
  ExpertStorage storage = ExpertStorage::single;
  bool bare = false;        // without Architecture::prefix
  bool tied_copy = false;   // a tied model has its embedding a second time, as kHeadName
  bool mtp_copies = false;  // modules of multi-token prediction have embedding and head a second time (mtp_copies())
};

// A parameter or a buffer of Witan's.
struct ModelTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  bool experts = false;  // dim 0 counts experts
  bool buffer = false;
};

// The tensors of a model made of another program's; of embedding and head `vocabulary` rows, those beyond them are 0.
// Buffers without a counterpart, such as the counters of a router, are left out; a parameter without one is a
// ConfigError. The links are normalised and cover their tensors.
std::vector<Link> link_model(const Architecture& architecture, NameStyle style, const std::vector<ModelTensor>& tensors,
                             int64_t vocabulary);

// The other program's tensors that the links are made of, with the shapes that they must have, in the order of the
// links.
std::vector<std::pair<std::string, Shape>> other_tensors(const Architecture& architecture, NameStyle style,
                                                         const std::vector<ModelTensor>& tensors, int64_t vocabulary);

// The names that a folder has, by those that are there.
NameStyle style_of(const Architecture& architecture, const std::function<bool(const std::string&)>& has,
                   const std::vector<ModelTensor>& tensors);

// Whether the architecture's programs compute this tensor rather than learn it.
bool is_computed(const Architecture& architecture, std::string_view name);

// How files of the architecture hold experts unless they say otherwise.
ExpertStorage default_storage(const Architecture& architecture);

// What a tied model may hold twice: the head's matrix is the embedding's.
inline constexpr std::string_view kHeadName = "lm_head.weight";
std::string embedding_name(const Architecture& architecture, NameStyle style);

// The other program's name of a tensor that layer number `layer` has, of a pattern with {l}.
std::string name_in_layer(const Architecture& architecture, NameStyle style, std::string_view pattern, int64_t layer);

// What files of DeepSeek-V3 hold in each module of multi-token prediction beside what is its own: embedding and head,
// which are the model's. Pairs of names: of the copy, and of what it is equal to.
std::vector<std::pair<std::string, std::string>> mtp_copies(const Architecture& architecture, NameStyle style,
                                                            const ModelConfig& model);

}  // namespace witan
