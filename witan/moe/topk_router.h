// The router whose tokens choose their K best experts. It computes in float32 (float64 models: float64).
#pragma once

#include <optional>

#include "witan/moe/router.h"

namespace witan {

class TopkRouter : public Router {
 public:
  // weight [E, D]
  TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context);

  Routing forward(Tape& tape, const Var& x, Dropping dropping) override;

 private:
  Routing route(Tape& tape, const Var& logits, int64_t sequences, Dropping dropping) const;
  Routing route_gathered(Tape& tape, const Var& logits, const Shape& x, Dropping dropping) const;

  MoeConfig config_;
  std::optional<TensorAxis> axis_;  // none: the tokens are this rank's alone
  Group* context_;                  // null: sequences are whole
  Parameter& weight_;
};

}  // namespace witan
