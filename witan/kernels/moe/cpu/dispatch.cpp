#include "witan/kernels/moe/dispatch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "witan/kernels/common/cpu/rows.h"

namespace witan::kernels::cpu {
namespace {

int64_t sum_of(const Tensor& counts) {
  const auto all = counts.span<int64_t>();
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

// Calls copy(i) for rows 0 … rows - 1 of `bytes` each, divided into tasks.
template <class Copy>
void for_row_copies(Stream& stream, int64_t rows, int64_t bytes, const Copy& copy) {
  stream.pool().for_ranges(rows, 4 * kTaskElements / std::max<int64_t>(bytes, 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy(i);
  });
}

int64_t row_bytes(const Tensor& rows) {
  return rows.shape().last() * size_of(rows.dtype());
}

// Fills the groups of rows that are ordered by expert, then source rank; returns the number of rows.
int64_t group_by_source(const RowGroups& groups, const Tensor& received) {
  const int64_t R = received.size(0), E = received.size(1);
  const int64_t* rows = received.data<int64_t>();
  int64_t *begin = groups.begin.data<int64_t>(), *count = groups.count.data<int64_t>();
  int64_t* start = groups.source_begin.data<int64_t>();  // [R, E]
  std::copy_n(rows, R * E, groups.source_count.data<int64_t>());
  int64_t total = 0;
  for (int64_t e = 0; e < E; ++e) {
    begin[e] = total;
    for (int64_t r = 0; r < R; ++r) {
      start[r * E + e] = total;
      total += rows[r * E + e];
    }
    count[e] = total - begin[e];
  }
  return total;
}

}  // namespace

void send_order(Stream&, const Tensor& slot, const Tensor& source, const Tensor& ids, const Tensor& counts) {
  const auto count = counts.span<int64_t>();
  std::vector<int64_t> next(count.size());
  std::exclusive_scan(count.begin(), count.end(), next.begin(), int64_t{0});
  const auto id = ids.span<int32_t>();
  for (size_t assignment = 0; assignment < id.size(); ++assignment) {
    if (id[assignment] < 0) {
      slot.data<int64_t>()[assignment] = -1;
      continue;
    }
    const int64_t row = next[static_cast<size_t>(id[assignment])]++;
    slot.data<int64_t>()[assignment] = row;
    source.data<int64_t>()[row] = static_cast<int64_t>(assignment);
  }
  std::fill(source.data<int64_t>() + sum_of(counts), source.data<int64_t>() + source.elements(), -1);
}

void local_order(Stream& stream, const LocalOrder& order, const Tensor& ids, const Tensor& counts,
                 const Tensor& weights) {
  cpu::send_order(stream, order.slot, order.source, ids, counts);
  const auto count = counts.span<int64_t>();
  std::exclusive_scan(count.begin(), count.end(), order.groups.begin.data<int64_t>(), int64_t{0});
  std::copy(count.begin(), count.end(), order.groups.count.data<int64_t>());
  if (weights.defined())
    cpu::gather_rows(stream, order.row_weights, weights.reshape({weights.elements(), 1}), order.source, 1);
}

void rank_counts(Stream&, const Tensor& send_counts, const Tensor& counts) {
  const auto to = send_counts.span<int64_t>(), count = counts.span<int64_t>();
  const size_t experts = count.size() / to.size();
  for (size_t r = 0; r < to.size(); ++r) {
    const auto first = count.begin() + static_cast<ptrdiff_t>(r * experts);
    to[r] = std::accumulate(first, first + static_cast<ptrdiff_t>(experts), int64_t{0});
  }
}

void gathered_groups(Stream&, const RowGroups& groups, const Tensor& received) {
  group_by_source(groups, received);
}

void local_choices(Stream&, const Tensor& local, const Tensor& ids, int64_t first, int64_t experts) {
  const auto choose = [&](int32_t id) {
    const int64_t at = id - first;
    return id >= 0 && at >= 0 && at < experts ? static_cast<int32_t>(at) : -1;
  };
  std::ranges::transform(ids.span<int32_t>(), local.data<int32_t>(), choose);
}

void receive_order(Stream&, const RowGroups& groups, const Tensor& recv_counts, const Tensor& place,
                   const Tensor& received) {
  const int64_t R = received.size(0), E = received.size(1);
  const int64_t *rows = received.data<int64_t>(), *start = groups.source_begin.data<int64_t>();  // [R, E]
  const int64_t total = group_by_source(groups, received);
  require<ShapeError>(total <= place.elements(), "receive_order: ", total, " rows arrive for a receive buffer of ",
                      place.elements(), ": all expert-parallel ranks must have the same number of tokens");
  int64_t row = 0;
  for (int64_t r = 0; r < R; ++r) {
    const int64_t first = row;
    for (int64_t e = 0; e < E; ++e)
      for (int64_t i = 0; i < rows[r * E + e]; ++i) place.data<int64_t>()[row++] = start[r * E + e] + i;
    recv_counts.data<int64_t>()[r] = row - first;
  }
}

void count_assignments(Stream&, const Tensor& counts, const Tensor& ids) {
  std::ranges::fill(counts.span<int64_t>(), 0);
  const int64_t E = counts.shape().last(), runs = counts.elements() / E, length = ids.elements() / runs;
  for (int64_t run = 0; run < runs; ++run)
    for (int64_t i = run * length; i < (run + 1) * length; ++i)
      if (const int32_t expert = ids.data<int32_t>()[i]; expert >= 0) ++counts.data<int64_t>()[run * E + expert];
}

void merge_order(Stream&, const RowGroups& groups, const Tensor& place, const Tensor& buffers, int64_t capacity) {
  const int64_t R = buffers.size(0), E = buffers.size(2);
  int64_t row = 0;
  for (int64_t e = 0; e < E; ++e) {
    const int64_t first = row;
    for (int64_t r = 0; r < R; ++r) {
      const int64_t *begin = buffers.data<int64_t>() + r * 2 * E, *count = begin + E;
      for (int64_t i = 0; i < count[e]; ++i) place.data<int64_t>()[row++] = r * capacity + begin[e] + i;
    }
    groups.begin.data<int64_t>()[e] = first;
    groups.count.data<int64_t>()[e] = row - first;
  }
}

void gather_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, int64_t divisor) {
  const int64_t bytes = row_bytes(y);
  const int64_t* from = index.data<int64_t>();
  for_row_copies(stream, y.size(0), bytes, [&](int64_t i) {
    if (from[i] < 0)
      std::memset(y.raw() + i * bytes, 0, static_cast<size_t>(bytes));  // zero bytes are zeros in every dtype
    else
      std::memcpy(y.raw() + i * bytes, x.raw() + from[i] / divisor * bytes, static_cast<size_t>(bytes));
  });
}

void gather_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  const int64_t bytes = row_bytes(y);
  const int64_t* from = index.data<int64_t>();
  for_row_copies(stream, sum_of(counts), bytes, [&](int64_t i) {
    std::memcpy(y.raw() + i * bytes, x.raw() + from[i] * bytes, static_cast<size_t>(bytes));
  });
}

void scatter_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  const int64_t bytes = row_bytes(y);
  const int64_t* to = index.data<int64_t>();
  for_row_copies(stream, sum_of(counts), bytes, [&](int64_t i) {
    std::memcpy(y.raw() + to[i] * bytes, x.raw() + i * bytes, static_cast<size_t>(bytes));
  });
}

void sum_assignments(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& slot) {
  const auto [T, D_] = y.shape().as_rows();
  const int64_t D = D_, K = T == 0 ? 0 : slot.elements() / T;
  dispatch_floating(y.dtype(), [&]<class E>() {
    using A = Accumulator<E>;
    constexpr int64_t kColumns = 128;  // their sums stay in registers or the L1 cache
    for_rows(stream, y, [&, from = x.data<E>(), slots = slot.data<int64_t>(), to = y.data<E>()](int64_t t) {
      for (int64_t begin = 0; begin < D; begin += kColumns) {
        const int64_t columns = std::min(kColumns, D - begin);
        A sums[kColumns] = {};
        for (int64_t k = 0; k < K; ++k) {
          const int64_t at = slots[t * K + k];
          if (at < 0) continue;  // dropped
          const E* row = from + at * D + begin;
#pragma omp simd
          for (int64_t d = 0; d < columns; ++d) sums[d] += A(row[d]);
        }
        E* out = to + t * D + begin;
#pragma omp simd
        for (int64_t d = 0; d < columns; ++d) store(out[d], sums[d]);
      }
    });
  });
}

void spread_to_parts(Stream&, const Tensor& slot, const Tensor& parts, const Tensor& source, const Tensor& counts) {
  const int64_t R = counts.elements(), B = parts.elements() / R;
  const int64_t* from = source.data<int64_t>();
  int64_t *row = parts.data<int64_t>(), *slots = slot.data<int64_t>();
  for (int64_t r = 0; r < R; ++r) {
    const int64_t count = counts.data<int64_t>()[r];
    require<ShapeError>(count <= B, "spread_to_parts: ", count, " rows for rank ", r, ", whose part holds ", B);
    for (int64_t i = 0; i < B; ++i, ++row) {
      *row = i < count ? *from++ : -1;
      if (*row >= 0) slots[*row] = r * B + i;
    }
  }
}

void find_in_parts(Stream&, const Tensor& arrival, const RowGroups& groups, int64_t part_rows) {
  const int64_t R = groups.source_count.size(0), E = groups.source_count.size(1);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t e = 0, row = r * part_rows; e < E; ++e) {
      const int64_t count = groups.source_count.data<int64_t>()[r * E + e];
      int64_t* to = arrival.data<int64_t>() + groups.source_begin.data<int64_t>()[r * E + e];
      std::iota(to, to + count, row);
      row += count;
    }
}

void choose_hosts(Stream&, const Tensor& hosts, const Tensor& ids, int64_t experts) {
  const int64_t T = ids.size(0), K = ids.size(1), C = hosts.size(1);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  for (int64_t t = 0; t < T; ++t) {
    const int32_t* of_token = ids.data<int32_t>() + t * K;
    int64_t last = -1;
    for (int64_t c = 0; c < C; ++c) {
      int64_t next = kNone;
      for (int64_t k = 0; k < K; ++k) {
        const int64_t host = of_token[k] < 0 ? kNone : of_token[k] / experts;
        if (host > last && host < next) next = host;
      }
      hosts.data<int32_t>()[t * C + c] = next == kNone ? -1 : static_cast<int32_t>(next);
      last = next;
    }
  }
}

void number_on_hosts(Stream&, const Tensor& numbers, const Tensor& ids, const Tensor& hosts, const Tensor& source,
                     int64_t experts) {
  const int64_t N = source.elements(), K = ids.size(1), C = hosts.size(1);
  for (int64_t n = 0; n < N; ++n) {
    const int64_t from = source.data<int64_t>()[n];
    const int64_t first = from < 0 ? 0 : hosts.data<int32_t>()[from] * experts;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t number = from < 0 ? 0 : ids.data<int32_t>()[from / C * K + k] - first + 1;
      numbers.data<int32_t>()[n * K + k] = static_cast<int32_t>(number >= 1 && number <= experts ? number : 0);
    }
  }
}

}  // namespace witan::kernels::cpu
