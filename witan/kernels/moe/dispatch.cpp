#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels {

void send_order(Stream& stream, const Tensor& slot, const Tensor& source, const Tensor& ids, const Tensor& counts) {
  WITAN_LAUNCH(stream, send_order, (Cost{0, bytes_of(slot, source, ids, counts)}), slot, source, ids, counts);
}

void local_groups(Stream& stream, const RowGroups& groups, const Tensor& counts) {
  WITAN_LAUNCH(stream, local_groups, (Cost{0, 3 * bytes_of(counts)}), groups, counts);
}

void rank_counts(Stream& stream, const Tensor& send_counts, const Tensor& counts) {
  WITAN_LAUNCH(stream, rank_counts, (Cost{0, bytes_of(send_counts, counts)}), send_counts, counts);
}

void receive_order(Stream& stream, const RowGroups& groups, const Tensor& recv_counts, const Tensor& place,
                   const Tensor& received) {
  WITAN_LAUNCH(stream, receive_order, (Cost{0, bytes_of(recv_counts, place) + 3 * bytes_of(received)}), groups,
               recv_counts, place, received);
}

void gathered_groups(Stream& stream, const RowGroups& groups, const Tensor& received) {
  WITAN_LAUNCH(stream, gathered_groups, (Cost{0, 3 * bytes_of(received)}), groups, received);
}

void local_choices(Stream& stream, const Tensor& local, const Tensor& ids, int64_t first, int64_t experts) {
  WITAN_LAUNCH(stream, local_choices, (Cost{0, bytes_of(local, ids)}), local, ids, first, experts);
}

void count_assignments(Stream& stream, const Tensor& counts, const Tensor& ids) {
  WITAN_LAUNCH(stream, count_assignments, (Cost{0, bytes_of(counts, ids)}), counts, ids);
}

void merge_order(Stream& stream, const RowGroups& groups, const Tensor& place, const Tensor& pools, int64_t capacity) {
  WITAN_LAUNCH(stream, merge_order, (Cost{0, bytes_of(place, pools)}), groups, place, pools, capacity);
}

void gather_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, int64_t divisor) {
  WITAN_LAUNCH(stream, gather_rows, (Cost{0, 2 * bytes_of(y) + bytes_of(index)}), y, x, index, divisor);
}

void gather_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  WITAN_LAUNCH(stream, gather_first_rows, (Cost{0, 2 * bytes_of(y) + bytes_of(index)}), y, x, index, counts);
}

void scatter_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  WITAN_LAUNCH(stream, scatter_first_rows, (Cost{0, 2 * bytes_of(x) + bytes_of(index)}), y, x, index, counts);
}

void sum_assignments(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& slot) {
  const auto added = static_cast<double>(slot.elements() * y.shape().last());
  const Cost cost{added, bytes_of(y, slot) + added * static_cast<double>(size_of(x.dtype()))};
  WITAN_LAUNCH(stream, sum_assignments, cost, y, x, slot);
}

}  // namespace witan::kernels
