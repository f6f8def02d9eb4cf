// The mapping between a model's tensors and those of a Hugging Face folder, by the rules of its architecture.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/convert/links.h"
#include "witan/convert/models/architecture.h"
#include "witan/model/config.h"
#include "witan/tensor/dtype.h"
#include "witan/tensor/shape.h"

namespace witan {

// The variant of names that a folder uses.
struct NameStyle {
  ExpertStorage storage = ExpertStorage::single;
  bool bare = false;        // without Architecture::prefix
  bool tied_copy = false;   // a tied model has a copy of its embedding, kHeadName
  bool mtp_copies = false;  // modules of multi-token prediction have copies of embedding and head
  // In the folder of a vision-language model the prefix of its text decoder's names, instead of Architecture::prefix,
  // and the name of the head, instead of kHeadName; otherwise empty.
  std::string prefix = {}, head = {};
};

// The other program's layer that has Witan's tensor, and the tensor's name below it; the layer is -1 outside of layers.
// Modules of multi-token prediction are numbered after the model's own layers.
std::pair<int64_t, std::string_view> layer_and_rest(std::string_view name, int64_t layers);
std::string head_name(const NameStyle& style);
// Whether the other program's tensor is a table of each token's experts: whole numbers of 64 bits, or of 32 in a GGUF
// file.
inline bool is_table_of_experts(std::string_view name) {
  return name.ends_with(".tid2eid") || name.ends_with(".ffn_gate_tid2eid.weight");
}
// Whether the tensor is outside of the text decoder of a vision-language model, or below Architecture::side.
bool is_side_tensor(const Architecture& architecture, const NameStyle& style, std::string_view name);
// Whether the tensor would make keys or values in a layer that borrows another one's (num_kv_shared_layers): programs
// pass over it.
bool is_of_borrowed_keys(const Architecture& architecture, const NameStyle& style, const ModelConfig& model,
                         std::string_view name);
// The prefix and the head of the text decoder in a vision-language model's folder, from the tensors that exist; an
// empty prefix if they have none of the names that Witan knows.
NameStyle text_decoder_style(const Architecture& architecture, const std::function<bool(const std::string&)>& has);

// A parameter or a buffer of Witan's.
struct ModelTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  bool experts = false;  // dim 0 counts experts
  bool buffer = false;
};

// Links a model's tensors to the other program's. Embedding and head have as many rows there as the vocabulary has
// tokens; further rows are padding. Buffers without a counterpart, such as a router's counters, are left out; a
// parameter without one is a ConfigError. The links are normalised and cover their tensors.
std::vector<Link> link_model(const Architecture& architecture, NameStyle style, const std::vector<ModelTensor>& tensors,
                             const ModelConfig& model);

// The other program's tensors in the order of the links, with the shapes that they must have.
std::vector<std::pair<std::string, Shape>> other_tensors(const Architecture& architecture, NameStyle style,
                                                         const std::vector<ModelTensor>& tensors,
                                                         const ModelConfig& model);

// Finds the variant of names from the tensors that exist. A prefix and a head are those of `known`.
NameStyle style_of(const Architecture& architecture, const std::function<bool(const std::string&)>& has,
                   const std::vector<ModelTensor>& tensors, const NameStyle& known = {});

// Whether the tensor is computed rather than learned.
bool is_computed(const Architecture& architecture, std::string_view name);

// The storage of experts in a folder that has none yet.
ExpertStorage default_storage(const Architecture& architecture);
// Whether files of the architecture may hold weights in MXFP4, experts as [in, out], and other matrices as [in, out].
bool has_mxfp4(const Architecture& architecture);
bool has_fused_in_out(const Architecture& architecture);
bool has_transposed(const Architecture& architecture);
// Whether its folders have a place for modules of multi-token prediction.
bool has_mtp(const Architecture& architecture);

std::string embedding_name(const Architecture& architecture, NameStyle style);

// The copies of the model's embedding and head that DeepSeek-V3's folders hold in each module of multi-token
// prediction, as pairs of names: the copy, and the tensor that it equals.
std::vector<std::pair<std::string, std::string>> mtp_copies(const Architecture& architecture, NameStyle style,
                                                            const ModelConfig& model);

}  // namespace witan
