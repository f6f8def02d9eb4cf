// Locates the rows of one of Witan's tensors in another program's tensor, which holds the rows of several.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "witan/convert/models/architecture.h"
#include "witan/model/config.h"

namespace witan {

struct ModelTensor;  // convert/tensor_names.h

// The number of rows of each tensor of a model; of each expert's matrix for experts.
using RowsByName = std::map<std::string, int64_t>;
RowsByName rows_by_name(const std::vector<ModelTensor>& tensors);

// How many groups the rows of joined tensors have.
int64_t group_count(HeadGroups groups, const ModelConfig& model);

struct JoinedRows {
  int64_t all = 0;     // rows of the other tensor
  int64_t groups = 1;  // it holds the first group of each joined tensor, then the second of each, and so on
  int64_t first = 0;   // of this tensor's rows within a group of the other
  int64_t own = 0;     // this tensor's rows in a group

  int64_t of_group() const { return all / groups; }  // rows of the other tensor

  // `name` is a tensor whose name below its layer is `rest` and which has `rows` rows there; `joined` lists those that
  // share the other tensor, itself among them, and is empty if there are no others. Throws ConfigError if the model
  // lacks one of them, or if `groups` do not divide the rows of one.
  JoinedRows(const std::string& name, std::string_view rest, int64_t rows, std::span<const std::string_view> joined,
             int64_t groups, const RowsByName& model);
};

}  // namespace witan
