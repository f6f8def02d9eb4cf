#include "witan/moe/dispatchers/receive_buffers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/autograd/recompute.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/receive_buffer.h"
#include "witan/moe/dispatchers/host_dispatch.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/shape.h"

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

// The part of a routing that fits into a pass, given this rank's ids and the counts of all ranks. The caller sets its
// weights.
Routing fitting(Stream& stream, const ReceiveBuffers& buffers, const Tensor& ids, const Tensor& counts, int64_t experts,
                int64_t capacity, const kernels::PassBounds& bounds) {
  Routing fits;
  fits.ids = stream.empty_like(ids);
  fits.kept = stream.empty({experts}, DType::i64);
  fits.counts = fits.kept;
  fits.capacity = capacity;
  fits.buffer_rows = bounds.rows;
  fits.part_rows = bounds.part_rows;
  fits.host_bounds = {bounds.copies, bounds.send_rows, bounds.part_rows};
  kernels::limit_to_buffer(stream, {fits.ids, fits.kept}, buffers.fill(), ids, counts, bounds);
  return fits;
}

// Passes every assignment as a token of its own, so that a token's assignments are summed after the last pass.
Var run_in_passes(Tape& tape, const Var& tokens, const Routing& routing, const ReceiveBuffers& buffers,
                  const Tensor& counts, const kernels::PassBounds& one, const ExpertPass& pass) {
  Stream& s = tape.stream();
  const int64_t assignments = routing.ids.elements(), passes = buffers.passes();
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
  for (int64_t number_of_pass = 0; number_of_pass < passes; ++number_of_pass) {
    kernels::PassBounds bounds = one;
    bounds.pass = number_of_pass;
    bounds.passes = passes;
    const auto run = [pass, bounds, &buffers, capacity = routing.capacity, group = replicas.group](
                         Tape& on, const std::vector<Var>& in) {
      const Tensor& of_all = in[3].value();  // [R, E]
      Routing part = fitting(on.stream(), buffers, in[2].value(), of_all, of_all.size(1), capacity, bounds);
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

double share_of_host(int64_t K, int64_t hosts, int64_t experts) {
  double without = 1;
  for (int64_t k = 0; k < std::min(K, hosts * experts); ++k)
    without *=
        static_cast<double>(std::max<int64_t>((hosts - 1) * experts - k, 0)) / static_cast<double>(hosts * experts - k);
  return 1 - without;
}

ReceiveBuffers::ReceiveBuffers(Stream& stream, double factor, double exchange_factor)
    : stream_(stream),
      factor_(factor),
      exchange_factor_(exchange_factor),
      fill_(stream.zeros({1}, DType::f64, MemoryTag::communication)) {
  restore();
}

int64_t ReceiveBuffers::rows(int64_t T, int64_t K, int64_t ranks, int64_t capacity) const {
  const double all = static_cast<double>(ranks * T * K);
  const double even = bounds_buffers() ? factor_ * static_cast<double>(T * K) : all;
  return std::max({static_cast<int64_t>(std::min(all, std::ceil(even))), ranks * std::min(T, capacity), int64_t{1}});
}

int64_t ReceiveBuffers::part_rows(int64_t T, int64_t K, int64_t ranks, int64_t experts, int64_t capacity) const {
  if (!in_parts()) return 0;
  const int64_t all = std::min(T * std::min(K, experts), experts * std::min(T, capacity));
  const double even = std::ceil(exchange_factor_ * static_cast<double>(T * K) / static_cast<double>(ranks));
  return std::max(static_cast<int64_t>(std::min(static_cast<double>(all), even)), int64_t{1});
}

HostBounds ReceiveBuffers::host_bounds(int64_t T, int64_t K, int64_t hosts, int64_t ranks, int64_t experts,
                                       int64_t capacity) const {
  if (!in_parts()) return {};
  const auto bound = [&](double even, int64_t all) {
    const double wanted = std::ceil(exchange_factor_ * even);
    return std::max(static_cast<int64_t>(std::min(static_cast<double>(all), wanted)), int64_t{1});
  };
  const auto tokens = static_cast<double>(T), chosen = static_cast<double>(K);
  const int64_t kept = std::min(T, capacity), local = experts / ranks;
  HostBounds bounds;
  bounds.copies = bound(tokens * share_of_host(K, hosts, experts), std::min(T, experts * kept));
  bounds.send_rows = bound(tokens * chosen, hosts * std::min(bounds.copies * std::min(K, experts), experts * kept));
  bounds.part_rows = bound(tokens * chosen / static_cast<double>(ranks),
                           hosts * std::min(bounds.copies * std::min(K, local), local * kept));
  return bounds;
}

void ReceiveBuffers::divide(int64_t passes, Exchange exchange) {
  passes_ = passes;
  exchange_ = bounds_exchanges() ? exchange : Exchange::with_counts;
}

void ReceiveBuffers::begin_step() const {
  stream_.zero(fill_);
}

namespace {

// Sets the bounds of a pass in which rows travel by hosts.
void bound_by_hosts(kernels::PassBounds& bounds, const ReceiveBuffers& buffers, const Routing& routing,
                    const ExpertHosts& hosts) {
  bounds.hosts = hosts.between->size();
  const int64_t experts = routing.kept.elements() / bounds.hosts;
  const HostBounds by_host = buffers.host_bounds(routing.ids.size(0), routing.ids.size(1), bounds.hosts,
                                                 hosts.within->size(), experts, routing.capacity);
  bounds.copies = by_host.copies;
  bounds.send_rows = by_host.send_rows;
  if (!rows_go_by_peers(*hosts.within, experts)) bounds.part_rows = by_host.part_rows;
}

// Gathers every rank's rows for each expert, [R, E]; if the pass bounds copies of tokens for hosts, those for each host
// too, [R, E + H].
Tensor gathered_counts(Stream& stream, const Routing& routing, Group& group, const kernels::PassBounds& bounds) {
  const int64_t E = routing.kept.elements(), H = bounds.copies > 0 ? bounds.hosts : 0;
  const Tensor all = stream.empty({group.size(), E + H}, DType::i64);
  if (H == 0) {
    group.all_gather(stream, all, routing.kept.reshape({1, E}));
    return all;
  }
  const Tensor own = stream.empty({1, E + H}, DType::i64), flat = own.reshape({E + H});
  stream.copy(flat.narrow(0, 0, E), routing.kept);
  stream.copy(flat.narrow(0, E, H), visits_of_hosts(stream, routing.ids, H, E / H).counts);
  group.all_gather(stream, all, own);
  return all;
}

}  // namespace

Var ReceiveBuffers::pass(Tape& tape, const Var& tokens, const Routing& routing, Group& group, const ExpertHosts& hosts,
                         const ExpertPass& pass) const {
  Stream& s = tape.stream();
  const int64_t R = group.size(), E = routing.kept.elements(), T = routing.ids.size(0), K = routing.ids.size(1);
  kernels::PassBounds bounds{.rows = rows(T, K, R, routing.capacity), .rank = group.rank()};
  if (hosts.any())
    bound_by_hosts(bounds, *this, routing, hosts);
  else
    bounds.part_rows = part_rows(T, K, R, E / R, routing.capacity);
  const Tensor counts = gathered_counts(s, routing, group, bounds);
  if (passes() > 1) return run_in_passes(tape, tokens, routing, *this, counts, bounds, pass);
  Routing fits = fitting(s, *this, routing.ids, counts, E, routing.capacity, bounds);
  fits.weights = routing.weights;
  fits.replicas = routing.replicas;
  return pass(tape, tokens, fits);
}

}  // namespace witan
