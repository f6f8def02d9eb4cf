#include "witan/kernels/moe/receive_buffer.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace witan::kernels::cpu {
namespace {

// The largest ratio of rows to their bound, over all bounds that are set.
struct Largest {
  double fill = 0;
  void note(int64_t rows, int64_t bound) {
    if (bound > 0) fill = std::max(fill, static_cast<double>(rows) / static_cast<double>(bound));
  }
};

}  // namespace

void limit_to_buffer(Stream&, const SentAssignments& sent, const Tensor& fill, const Tensor& ids, const Tensor& counts,
                     const PassBounds& bounds) {
  const int64_t R = counts.size(0), E = sent.counts.elements(), local = E / R, places = R / bounds.hosts;
  const auto row_of = [&](int64_t rank) { return counts.data<int64_t>() + rank * counts.size(1); };
  const auto in_pass = [&](int64_t expert) { return expert % local * bounds.passes / local == bounds.pass; };
  // The rows for a rank from the ranks at one position on every host; with one host, those from a single rank.
  const auto part_of = [&](int64_t place, int64_t to) {
    int64_t part = 0;
    for (int64_t from = place; from < R; from += places)
      for (int64_t expert = to * local; expert < (to + 1) * local; ++expert)
        if (in_pass(expert)) part += row_of(from)[expert];
    return part;
  };
  Largest largest;
  for (int64_t host = 0; host < bounds.hosts; ++host) {
    std::vector<int64_t> sends(static_cast<size_t>(places));
    for (int64_t to = host * places; to < (host + 1) * places; ++to) {
      int64_t load = 0;
      for (int64_t place = 0; place < places; ++place) {
        const int64_t part = part_of(place, to);
        largest.note(part, bounds.part_rows);
        sends[static_cast<size_t>(place)] += part;
        load += part;
      }
      largest.note(load, bounds.rows);
    }
    for (const int64_t sent_by_one : sends) largest.note(sent_by_one, bounds.send_rows);
  }
  if (bounds.copies > 0)
    for (int64_t rank = 0; rank < R; ++rank)
      for (int64_t host = 0; host < bounds.hosts; ++host) largest.note(row_of(rank)[E + host], bounds.copies);
  const double found = largest.fill;
  double& most = *fill.data<double>();
  most = std::max(most, found);
  int64_t* kept = sent.counts.data<int64_t>();
  for (int64_t expert = 0; expert < E; ++expert)
    kept[expert] = found <= 1 && in_pass(expert) ? row_of(bounds.rank)[expert] : 0;
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
