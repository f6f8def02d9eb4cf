// The losses of a step's micro-batches on every rank, before the step ends: for decisions about its update.
#pragma once

#include <vector>

#include "witan/parallel/groups.h"

namespace witan {

class LossGather {
 public:
  // Of so many micro-batches of each rank. Groups must outlive it.
  LossGather(Stream& stream, const Groups& groups, int64_t micro_batches);

  // Collective over all ranks. `own`: this rank's losses, [1] float64 each; none where it computes none.
  void gather(Stream& stream, const std::vector<Tensor>& own);

  const Tensor& losses() const { return all_; }  // [ranks * micro_batches] float64
  // [M] int64: which of them make up the loss of the step, that of each token once, in the order of ranks.
  const Tensor& order() const { return order_; }

 private:
  Group& world_;
  Tensor all_, own_, order_;
};

}  // namespace witan
