// The accounting of an export in any format: the ledger, and the tensors of the checkpoint that are held in memory.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/checkpoint/safetensors.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/ledger.h"
#include "witan/convert/links.h"
#include "witan/convert/weight_source.h"

namespace witan {

class ExportAccount {
 public:
  explicit ExportAccount(CheckpointWeights& weights) : weights_(weights) {}

  // Releases the tensors of the previous link, unless this link is made of the same ones, as is often the case.
  void hold(const Link& link);
  // Accounts for a tensor that was written with this type and hash.
  void add(const Link& link, std::string_view type, std::string hash);
  // Accounts for one of several tensors that the link was written as.
  void add(const Link& link, const StoredTensor& as, std::string hash);
  // Adds the error of a tensor that was quantised to `bytes` to its kind of matrix.
  void add_error(const Link& link, std::string_view type, int64_t bytes, const RoundingError& error);
  // Lists every tensor of the model with its hash and its targets; a merged adapter's targets are its matrix's. Buffers
  // of training may have none. Throws CheckpointError for a parameter without a target.
  void close();

  Ledger ledger;

 private:
  CheckpointWeights& weights_;
  std::vector<std::string> held_;
  std::map<std::string, std::vector<std::string>> went_into_;
  std::map<std::pair<std::string, std::string>, QuantisedKind> quantised_;  // by matrices and type
};

}  // namespace witan
