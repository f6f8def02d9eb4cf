#include "witan/kernels/expert_pool.h"

#include <algorithm>
#include <numeric>

namespace witan::kernels::cpu {

void limit_to_pool(Stream&, const PoolAssignments& sent, const Tensor& fill, const Tensor& ids, const Tensor& counts,
                   const PoolWave& wave) {
  const int64_t R = counts.size(0), E = counts.size(1), local = E / R;
  const auto rows = counts.span<int64_t>();
  const auto in_wave = [&](int64_t expert) { return expert % local * wave.waves / local == wave.wave; };
  int64_t most = 0, most_of_one = 0;  // rows that come to a rank, and those of one rank among them
  for (int64_t to = 0; to < R; ++to) {
    int64_t load = 0;
    for (int64_t from = 0; from < R; ++from) {
      int64_t part = 0;
      for (int64_t expert = to * local; expert < (to + 1) * local; ++expert)
        if (in_wave(expert)) part += rows[static_cast<size_t>(from * E + expert)];
      most_of_one = std::max(most_of_one, part);
      load += part;
    }
    most = std::max(most, load);
  }
  double found = static_cast<double>(most) / static_cast<double>(wave.rows);
  if (wave.part_rows > 0)
    found = std::max(found, static_cast<double>(most_of_one) / static_cast<double>(wave.part_rows));
  double& largest = *fill.data<double>();
  largest = std::max(largest, found);
  int64_t* kept = sent.counts.data<int64_t>();
  for (int64_t expert = 0; expert < E; ++expert)
    kept[expert] = found <= 1 && in_wave(expert) ? rows[static_cast<size_t>(wave.rank * E + expert)] : 0;
  std::ranges::transform(ids.span<int32_t>(), sent.ids.data<int32_t>(),
                         [&](int32_t id) { return id >= 0 && kept[id] > 0 ? id : -1; });
}

void number_rows(Stream&, const Tensor& index) {
  const auto rows = index.span<int64_t>();
  std::iota(rows.begin(), rows.end(), 0);
}

void skip_overflow(Stream&, const Tensor& step, const Tensor& fill) {
  if (const double found = *fill.data<double>(); found > 1) step.data<double>()[step_value::skip] = found;
}

}  // namespace witan::kernels::cpu
