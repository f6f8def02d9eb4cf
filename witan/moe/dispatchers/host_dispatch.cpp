#include "witan/moe/dispatchers/host_dispatch.h"

#include <algorithm>

#include "witan/kernels/moe/dispatch.h"

namespace witan {
namespace {

// Orders the copies by host, then token, and says how they travel.
RowExchange exchange_of(Stream& stream, const Routing& routing, const HostVisits& visits, const ExpertHosts& hosts) {
  const int64_t T = visits.hosts.size(0), C = visits.hosts.size(1), H = hosts.between->size();
  const auto integers = [&](const Shape& shape) { return stream.empty(shape, DType::i64); };
  RowExchange copies;
  copies.tokens = T;
  copies.topk = C;
  copies.group = hosts.between;
  copies.slot = integers({T * C});
  copies.source = integers({T * C});
  kernels::send_order(stream, copies.slot, copies.source, visits.hosts, visits.counts);
  if (const int64_t most = routing.host_bounds.copies; most > 0) {
    const Tensor parts = integers({H * most});
    kernels::spread_to_parts(stream, copies.slot, parts, copies.source, visits.counts);
    copies.source = parts;
    copies.part_rows = most;
    copies.capacity = H * most;
    return copies;
  }
  copies.capacity = H * T;
  // Every received copy has a row in some receive buffer of this host.
  if (routing.buffer_rows > 0) copies.capacity = std::min(copies.capacity, hosts.within->size() * routing.buffer_rows);
  copies.send_counts = visits.counts;
  copies.recv_counts = integers({H});
  hosts.between->all_to_all_equal(stream, copies.recv_counts, copies.send_counts);
  return copies;
}

// The experts of received tokens, [N, K] int32, numbered within this host; -1: none.
Tensor exchange_ids(Stream& stream, const Tensor& ids, const HostVisits& visits, const RowExchange& copies,
                    int64_t experts) {
  const int64_t K = ids.size(1);
  const Tensor sent = stream.empty({copies.source.size(0), K}, DType::i32);
  kernels::number_on_hosts(stream, sent, ids, visits.hosts, copies.source, experts);
  const Tensor arrived = stream.empty({copies.arriving_rows(), K}, DType::i32);
  if (copies.part_rows > 0) {
    copies.group->all_to_all_equal(stream, arrived, sent);
  } else {
    stream.zero(arrived);  // rows without a sender have no experts
    copies.group->all_to_all(stream, arrived, copies.recv_counts, sent, copies.send_counts);
  }
  const Tensor local = stream.empty_like(arrived);
  kernels::local_choices(stream, local, arrived, 1, experts);
  return local;
}

}  // namespace

HostVisits visits_of_hosts(Stream& stream, const Tensor& ids, int64_t hosts, int64_t experts) {
  HostVisits visits;
  visits.hosts = stream.empty({ids.size(0), std::min(ids.size(1), hosts)}, DType::i32);
  kernels::choose_hosts(stream, visits.hosts, ids, experts);
  visits.counts = stream.empty({hosts}, DType::i64);
  kernels::count_assignments(stream, visits.counts, visits.hosts);
  return visits;
}

HostMap make_host_map(Stream& stream, const Routing& routing, const ExpertHosts& hosts) {
  const int64_t T = routing.ids.size(0), H = hosts.between->size(), experts = routing.kept.elements() / H;
  const HostVisits visits = visits_of_hosts(stream, routing.ids, H, experts);
  HostMap map;
  map.copies = exchange_of(stream, routing, visits, hosts);
  Routing& arrived = map.arrived;
  arrived.ids = exchange_ids(stream, routing.ids, visits, map.copies, experts);
  arrived.kept = stream.empty({experts}, DType::i64);
  kernels::count_assignments(stream, arrived.kept, arrived.ids);
  arrived.counts = arrived.kept;
  arrived.capacity = H * std::min(T, routing.capacity);
  arrived.buffer_rows = routing.buffer_rows;
  arrived.send_rows = routing.host_bounds.send_rows;
  arrived.part_rows = routing.host_bounds.part_rows;
  arrived.replicas = routing.replicas;
  return map;
}

HostArrivals copy_to_hosts(Tape& tape, const Var& x, const Var& weights, const HostMap& map,
                           const ops::Meanwhile* meanwhile) {
  const Var rows = copy_to_assignments(tape, x, map.copies), of_rows = copy_to_assignments(tape, weights, map.copies);
  if (meanwhile) {
    const std::vector<Var> arrived = send_rows_with_weights(tape, rows, of_rows, map.copies, *meanwhile);
    return {arrived[0], arrived[1]};
  }
  return {send_rows(tape, rows, map.copies), send_rows(tape, of_rows, map.copies)};
}

Var sum_over_hosts(Tape& tape, const Var& sums, const HostMap& map) {
  return sum_assignments(tape, return_rows(tape, sums, map.copies), map.copies);
}

}  // namespace witan
