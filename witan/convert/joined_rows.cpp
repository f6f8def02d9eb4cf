#include "witan/convert/joined_rows.h"

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/convert/tensor_names.h"

namespace witan {

RowsByName rows_by_name(const std::vector<ModelTensor>& tensors) {
  RowsByName rows;
  for (const ModelTensor& tensor : tensors) rows[tensor.name] = tensor.shape[tensor.experts ? 1 : 0];
  return rows;
}

int64_t group_count(HeadGroups groups, const ModelConfig& model) {
  switch (groups) {
    case HeadGroups::query_heads:
      return model.attention.num_attention_heads;
    case HeadGroups::key_heads:
      return model.linear_attention.linear_num_key_heads;
    case HeadGroups::one:
      break;
  }
  return 1;
}

JoinedRows::JoinedRows(const std::string& name, std::string_view rest, int64_t rows,
                       std::span<const std::string_view> joined, int64_t in_groups, const RowsByName& model)
    : all(rows), groups(in_groups), own(rows / in_groups) {
  const std::string layer = name.substr(0, name.size() - rest.size());
  if (!joined.empty()) all = 0;
  for (const std::string_view one : joined) {
    const std::string other = cat(layer, one);
    const auto found = model.find(other);
    require<ConfigError>(found != model.end(), name, " is one tensor with ", other, " there, which this model lacks");
    require<ConfigError>(found->second % groups == 0, other, " has ", found->second, " rows, which ", groups,
                         " heads do not divide");
    if (one == rest) first = all / groups;
    all += found->second;
  }
}

}  // namespace witan
