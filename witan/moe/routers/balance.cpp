#include "witan/moe/routers/balance.h"

#include <algorithm>

#include "witan/kernels/pointwise/elementwise.h"

namespace witan {

bool Balance::is(BalanceLoss::Over loss) const {
  return std::ranges::find(over, loss) != over.end();
}

bool Balance::by_sequence() const {
  return sequences > 1 && is(BalanceLoss::Over::sequence);
}

std::string Balance::name_of(size_t i) const {
  return i == 0 ? kBalanceLoss : BalanceLoss{over[i], 0}.tag();
}

Balance balance_of(const MoeConfig& config, int64_t sequences) {
  Balance balance{{}, sequences};
  for (const BalanceLoss& loss : config.balance_losses()) balance.over.push_back(loss.over);
  if (balance.over.empty()) balance.over.push_back(BalanceLoss::Over::micro_batch);
  return balance;
}

std::vector<RouterStatistic> declare_losses(const MoeConfig& config) {
  std::vector<BalanceLoss> losses = config.balance_losses();
  if (losses.empty()) losses.push_back({BalanceLoss::Over::micro_batch, 0});
  const Balance balance = balance_of(config, 1);
  std::vector<RouterStatistic> all;
  for (size_t i = 0; i < losses.size(); ++i)
    all.push_back({.name = balance.name_of(i), .tag = losses[i].tag(), .loss_coefficient = losses[i].coefficient});
  all.push_back({.name = kZLoss, .loss_coefficient = config.moe_z_loss_coeff});
  return all;
}

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
