#include "witan/convert/foreign_weights.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/convert/tensor_names.h"

namespace witan {

void ForeignWeights::set_links(std::vector<Link> links) {
  links_ = std::move(links);
  index_.clear();
  for (size_t i = 0; i < links_.size(); ++i) index_.emplace(links_[i].name, i);
}

std::map<std::string, Shape> ForeignWeights::weights() const {
  std::map<std::string, Shape> all;
  for (const Link& link : links_) all.emplace(link.name, link.shape);
  return all;
}

void ForeignWeights::read(const std::string& name, int64_t first, int64_t count, double* out) {
  gather_to(links_.at(index_.at(name)), first, count, Element::f64, reinterpret_cast<std::byte*>(out));
}

void ForeignWeights::gather_to(const Link& link, int64_t first, int64_t count, Element type, std::byte* out) {
  gather(link, first, count, type, out, [this](const std::string& name) { return hold(name); });
}

void ForeignWeights::choose_dtype(ModelConfig& model,
                                  const std::function<bool(Element by, const std::string& source)>& held) {
  for (const char* dtype : {"bfloat16", "float32", "float64"}) {
    model.dtype = dtype;
    list_tensors(model);
    if (all_held(held)) return;
  }
}

void ForeignWeights::check_tables_of_experts(int64_t experts) {
  constexpr int64_t kMost = 1 << 16;  // elements that are read at a time
  std::vector<double> values;
  for (const Link& link : links_) {
    const std::string& source = link.pieces.front().from.name;
    if (!is_table_of_experts(source)) continue;
    for (int64_t first = 0; first < link.elements(); first += kMost) {
      values.resize(static_cast<size_t>(std::min(kMost, link.elements() - first)));
      read(link.name, first, static_cast<int64_t>(values.size()), values.data());
      const auto wrong = std::ranges::find_if(
          values, [&](double value) { return value < 0 || value >= static_cast<double>(experts); });
      require<CheckpointError>(wrong == values.end(), where(), ": \"", source, "\" gives token ",
                               (first + (wrong - values.begin())) / link.shape.last(), " expert ",
                               wrong == values.end() ? 0 : *wrong, ", but the model has ", experts,
                               " experts: the table is damaged, or the configuration is another model's");
    }
  }
}

bool ForeignWeights::all_held(const std::function<bool(Element by, const std::string& source)>& held) const {
  return std::ranges::all_of(tensors_, [&](const ModelTensor& tensor) {
    const auto found = index_.find(tensor.name);
    return found == index_.end() || std::ranges::all_of(links_[found->second].pieces, [&](const SharedBox& piece) {
             return held(*element_of(tensor.dtype), piece.from.name);
           });
  });
}

}  // namespace witan
