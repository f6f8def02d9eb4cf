// What an export keeps account of, whatever it writes: the ledger, and which tensors of the checkpoint are held.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/checkpoint/safetensors_header.h"
#include "witan/convert/elements/elements.h"
#include "witan/convert/ledger.h"
#include "witan/convert/links.h"
#include "witan/convert/weight_source.h"

namespace witan {

class ExportAccount {
 public:
  explicit ExportAccount(CheckpointWeights& weights) : weights_(weights) {}

  // Gives back what the link before was made of, unless this one is made of the same, as it often is.
  void hold(const Link& link);
  // A tensor was written, of this type and with this hash.
  void add(const Link& link, std::string_view type, std::string hash);
  // Accounts for one of several tensors that the link was written as.
  void add(const Link& link, const StoredTensor& as, std::string hash);
  // The tensor was quantised to so many bytes: counts for its kind of matrix.
  void add_error(const Link& link, std::string_view type, int64_t bytes, const RoundingError& error);
  // Lists what the checkpoint holds: of every tensor of the model its hash and where it went; of an adapter that is
  // merged, its matrix did. Buffers of training may have no place. Throws CheckpointError for a parameter that has
  // none.
  void close();

  Ledger ledger;

 private:
  CheckpointWeights& weights_;
  std::vector<std::string> held_;
  std::map<std::string, std::vector<std::string>> went_into_;
  std::map<std::pair<std::string, std::string>, QuantisedKind> quantised_;  // by matrices and type
};

}  // namespace witan
