#include "witan/moe/expert_pools.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/autograd/recompute.h"
#include "witan/kernels/dispatch.h"
#include "witan/kernels/expert_pool.h"
#include "witan/ops/elementwise.h"
#include "witan/ops/view.h"

namespace witan {
namespace {

// tokens [T, D] -> [T K, D]: a row for each assignment; number [T K] counts them
Var one_row_each(Tape& tape, const Var& tokens, const Tensor& number) {
  Stream& s = tape.stream();
  const int64_t topk = number.elements() / std::max<int64_t>(tokens.size(0), 1);
  const Tensor y = s.empty({number.elements(), tokens.size(1)}, tokens.dtype());
  kernels::gather_rows(s, y, tokens.value(), number, topk);
  return tape.record(
      "one_row_each", y, {tokens},
      [x = tape.slot(tokens), shape = tokens.shape(), number = tape.save(number)](Backward& b, const Tensor& dy) {
        const Tensor dx = b.stream().empty(shape, dy.dtype());
        kernels::sum_assignments(b.stream(), dx, dy, b.value(number));
        b.add(x, dx);
      });
}

// Its adjoint: rows [T K, D] -> [T, D], the sum of each token's K, in their order
Var sum_of_each(Tape& tape, const Var& rows, const Tensor& number, int64_t tokens) {
  Stream& s = tape.stream();
  const int64_t topk = number.elements() / std::max<int64_t>(tokens, 1);
  const Tensor y = s.empty({tokens, rows.size(1)}, rows.dtype());
  kernels::sum_assignments(s, y, rows.value(), number);
  return tape.record(
      "sum_of_each", y, {rows},
      [x = tape.slot(rows), shape = rows.shape(), topk, number = tape.save(number)](Backward& b, const Tensor& dy) {
        const Tensor dx = b.stream().empty(shape, dy.dtype());
        kernels::gather_rows(b.stream(), dx, dy, b.value(number), topk);
        b.add(x, dx);
      });
}

// What a routing's ids, of this rank, and counts [R, E], of all, leave in a wave. Its weights are the caller's.
Routing fitting(Stream& stream, const ExpertPools& pools, const Tensor& ids, const Tensor& counts, int64_t capacity,
                const kernels::PoolWave& wave) {
  Routing fits;
  fits.ids = stream.empty_like(ids);
  fits.kept = stream.empty({counts.size(1)}, DType::i64);
  fits.counts = fits.kept;
  fits.capacity = capacity;
  fits.pool_rows = wave.rows;
  fits.part_rows = wave.part_rows;
  kernels::limit_to_pool(stream, {fits.ids, fits.kept}, pools.fill(), ids, counts, wave);
  return fits;
}

// Every assignment is passed as a token of its own, so that those of a token meet when all waves are done.
Var pass_in_waves(Tape& tape, const Var& tokens, const Routing& routing, const Tensor& counts,
                  const kernels::PoolWave& one, const ExpertPass& pass) {
  Stream& s = tape.stream();
  const int64_t assignments = routing.ids.elements(), waves = routing.pools->waves();
  const Tensor number = s.empty({assignments}, DType::i64);
  kernels::number_rows(s, number);
  const Var each = rematerialised(tape, {tokens, tape.constant(number)}, [](Tape& on, const std::vector<Var>& in) {
    return one_row_each(on, in[0], in[1].value());
  });
  std::vector<Var> inputs = {each, ops::reshape(tape, routing.weights, {assignments, 1}),
                             tape.constant(routing.ids.reshape({assignments, 1})), tape.constant(counts)};
  const ops::ExpertReplicas& replicas = routing.replicas;
  if (replicas.any())
    for (const Tensor& of_choice : {replicas.choice.hosted, replicas.choice.place})
      inputs.push_back(tape.constant(of_choice));
  Var sum;
  for (int64_t number_of_wave = 0; number_of_wave < waves; ++number_of_wave) {
    kernels::PoolWave wave = one;
    wave.wave = number_of_wave;
    wave.waves = waves;
    const auto run = [pass, wave, pools = routing.pools, capacity = routing.capacity, group = replicas.group](
                         Tape& on, const std::vector<Var>& in) {
      Routing part = fitting(on.stream(), *pools, in[2].value(), in[3].value(), capacity, wave);
      part.weights = in[1];
      if (group) part.replicas = {group, {in[4].value(), in[5].value()}};
      return std::vector{pass(on, in[0], part)};
    };
    const Var rows = recomputed(tape, inputs, run).front();
    sum = sum.defined() ? ops::add(tape, sum, rows) : rows;  // zeros but for one of them: exact
  }
  return sum_of_each(tape, sum, number, tokens.size(0));
}

}  // namespace

ExpertPools::ExpertPools(Stream& stream, double factor, double exchange_factor)
    : stream_(stream),
      factor_(factor),
      exchange_factor_(exchange_factor),
      fill_(stream.zeros({1}, DType::f64, MemoryTag::communication)) {
  restore();
}

int64_t ExpertPools::rows(int64_t T, int64_t K, int64_t ranks, int64_t capacity) const {
  const double all = static_cast<double>(ranks * T * K);
  const double even = bounds_pools() ? factor_ * static_cast<double>(T * K) : all;
  return std::max({static_cast<int64_t>(std::min(all, std::ceil(even))), ranks * std::min(T, capacity), int64_t{1}});
}

int64_t ExpertPools::part_rows(int64_t T, int64_t K, int64_t ranks, int64_t experts, int64_t capacity) const {
  if (!in_parts()) return 0;
  const int64_t all = std::min(T * std::min(K, experts), experts * std::min(T, capacity));
  const double even = std::ceil(exchange_factor_ * static_cast<double>(T * K) / static_cast<double>(ranks));
  return std::max(static_cast<int64_t>(std::min(static_cast<double>(all), even)), int64_t{1});
}

void ExpertPools::divide(int64_t waves, Exchange exchange) {
  waves_ = waves;
  exchange_ = bounds_exchanges() ? exchange : Exchange::as_they_come;
}

void ExpertPools::begin_step() const {
  stream_.zero(fill_);
}

Var pass_within_pools(Tape& tape, const Var& tokens, const Routing& routing, Group& group, const ExpertPass& pass) {
  Stream& s = tape.stream();
  const int64_t R = group.size(), E = routing.kept.elements();
  const Tensor counts = s.empty({R, E}, DType::i64);
  group.all_gather(s, counts, routing.kept.reshape({1, E}));
  const int64_t T = routing.ids.size(0), K = routing.ids.size(1);
  const kernels::PoolWave wave{.rows = routing.pools->rows(T, K, R, routing.capacity),
                               .rank = group.rank(),
                               .part_rows = routing.pools->part_rows(T, K, R, E / R, routing.capacity)};
  if (routing.pools->waves() > 1) return pass_in_waves(tape, tokens, routing, counts, wave, pass);
  Routing fits = fitting(s, *routing.pools, routing.ids, counts, routing.capacity, wave);
  fits.weights = routing.weights;
  fits.replicas = routing.replicas;
  return pass(tape, tokens, fits);
}

}  // namespace witan
