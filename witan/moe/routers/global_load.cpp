#include "witan/moe/routers/global_load.h"

#include "witan/kernels/pointwise/elementwise.h"

namespace witan {

GlobalLoad::GlobalLoad(Stream& stream, int64_t routers, int64_t experts, int64_t rounds, Group& data)
    : data_(data),
      rounds_(rounds),
      loads_(stream.empty({routers * rounds, experts}, DType::i64, MemoryTag::communication)) {}

Tensor GlobalLoad::load(int64_t router, int64_t round) const {
  return loads_.narrow(0, router * rounds_ + round, 1).reshape({loads_.size(1)});
}

Tensor GlobalLoad::add(Tape& tape, int64_t router, int64_t micro_batch, const Tensor& counts) {
  const int64_t round = micro_batch % rounds_;
  Tensor of_round = load(router, round);
  if (!tape.training_forward()) return of_round;
  Stream& stream = tape.stream();
  stream.copy(of_round, counts);
  if (data_.size() > 1) data_.all_reduce(stream, of_round);
  if (round > 0) kernels::add(stream, of_round, of_round, load(router, round - 1));
  return of_round;
}

}  // namespace witan
