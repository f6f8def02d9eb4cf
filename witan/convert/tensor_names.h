// The tensors of a Hugging Face folder that a model's are made of, by the rules of its architecture.
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
// Whether files of the architecture may hold weights in MXFP4, and whether they hold matrices as [in, out].
bool has_mxfp4(const Architecture& architecture);
bool has_transposed(const Architecture& architecture);

std::string embedding_name(const Architecture& architecture, NameStyle style);

// What files of DeepSeek-V3 hold in each module of multi-token prediction beside what is its own: embedding and head,
// which are the model's. Pairs of names: of the copy, and of what it is equal to.
std::vector<std::pair<std::string, std::string>> mtp_copies(const Architecture& architecture, NameStyle style,
                                                            const ModelConfig& model);

}  // namespace witan
