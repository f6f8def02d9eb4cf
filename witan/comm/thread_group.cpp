#include "witan/comm/thread_group.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads.h"
#include "witan/comm/reduce.h"

namespace witan {
namespace {

using Kind = Collective::Kind;

void copy_bytes(Stream& stream, std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t kGrain = 1 << 18;
  if (to == from) return;
  stream.pool().for_ranges(bytes, kGrain, [=](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

template <class Body>
void dispatch_any(DType dtype, const Body& body) {
  if (dtype == DType::i32) return body.template operator()<int32_t>();
  if (dtype == DType::i64) return body.template operator()<int64_t>();
  dispatch_floating(dtype, body);
}

template <class T>
void reduce_elements(Stream& stream, Reduce reduce, const std::vector<const T*>& inputs, const std::vector<T*>& outputs,
                     int64_t elements) {
  constexpr int64_t kGrain = 1 << 15;
  stream.pool().for_ranges(elements, kGrain, [&](int64_t begin, int64_t end) {
    using namespace reduce_detail;
    if (reduce == Reduce::sum) {
      reduce_range<T, Add>(inputs, outputs, begin, end);
    } else {
      reduce_range<T, Largest>(inputs, outputs, begin, end);
    }
  });
}

// The rows of an uneven exchange may differ in number from rank to rank, everything else must not.
bool alike(const Collective& a, const Collective& b) {
  if (a.kind != b.kind || a.reduce != b.reduce || a.peer != b.peer) return false;
  if (a.kind == Kind::barrier) return true;
  if (a.in.dtype() != b.in.dtype()) return false;
  if (a.kind == Kind::all_to_all) return a.in.shape().with(0, 0) == b.in.shape().with(0, 0);
  return a.in.shape() == b.in.shape();
}

}  // namespace

void ThreadGroup::perform(Stream& stream, const Collective& call) {
  require<CommError>(!stream.is_cuda(), "axis ", name(), ": ", name_of(call.kind), " on ", stream.device(),
                     " through a group of the host; make the rank's groups for its stream");
  switch (call.kind) {
    case Kind::send:
      return meeting_->send(rank(), call);
    case Kind::recv:
      return receive(
          call, [&](const Collective& offer) { copy_bytes(stream, call.out.raw(), offer.in.raw(), offer.in.bytes()); });
    default:
      return meet(call, [&] { move(stream, call); });
  }
}

void ThreadGroup::agree(const Collective& call) {
  if (size() == 1) return;
  switch (call.kind) {
    case Kind::send:
      return meeting_->send(rank(), call);
    case Kind::recv:
      return receive(call, [](const Collective&) {});
    default:
      return meet(call, [] {});
  }
}

void ThreadGroup::meet(const Collective& call, const std::function<void()>& work) {
  meeting_->enter(rank(), call);
  std::string verdict;
  {
    struct Leave {
      Rendezvous& meeting;
      int rank;
      ~Leave() { meeting.leave(rank); }
    } const leave{*meeting_, rank()};
    verdict = disagreement();
    if (verdict.empty()) work();
  }
  if (verdict.empty()) return;
  meeting_->fail(verdict);
  throw CommError(verdict);
}

void ThreadGroup::move(Stream& stream, const Collective& call) {
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      return reduce(stream, call);
    case Kind::all_gather:
    case Kind::broadcast:
      return gather(stream, call);
    case Kind::all_to_all:
      return exchange(stream, call);
    case Kind::all_to_all_equal:
      return exchange_equal(stream, call);
    default:
      return;
  }
}

std::string ThreadGroup::disagreement() const {
  const Collective& first = meeting_->call_of(0);
  for (int peer = 1; peer < size(); ++peer) {
    const Collective& other = meeting_->call_of(peer);
    if (!alike(first, other))
      return cat("axis ", name(), ": rank ", meeting_->world_rank(peer), " calls ", describe(other),
                 ", expected as on rank ", meeting_->world_rank(0), ": ", describe(first));
  }
  return first.kind == Kind::all_to_all ? counts_disagreement() : "";
}

std::string ThreadGroup::counts_disagreement() const {
  const auto where = [&](int r) { return cat("axis ", name(), ": all_to_all: rank ", meeting_->world_rank(r)); };
  for (int r = 0; r < size(); ++r) {
    const Collective& call = meeting_->call_of(r);
    const int64_t *sends = call.send_counts.data<int64_t>(), *receives = call.recv_counts.data<int64_t>();
    int64_t rows_out = 0, rows_in = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t sent = sends[peer], expected = meeting_->call_of(peer).recv_counts.data<int64_t>()[r];
      if (sent != expected)
        return cat(where(r), " sends ", sent, " rows to rank ", meeting_->world_rank(peer), ", which expects ",
                   expected);
      // Compared by what is left, so that no sum of hostile counts overflows.
      if (sent < 0 || sent > call.in.size(0) - rows_out)
        return cat(where(r), " sends ", sent, " rows to rank ", meeting_->world_rank(peer), ", but has only ",
                   call.in.size(0) - rows_out, " of its ", call.in.size(0), " left");
      if (receives[peer] < 0 || receives[peer] > call.out.size(0) - rows_in)
        return cat(where(r), " receives ", receives[peer], " rows from rank ", meeting_->world_rank(peer),
                   ", but has room for only ", call.out.size(0) - rows_in, " of its ", call.out.size(0),
                   "; raise the capacity");
      rows_out += sent;
      rows_in += receives[peer];
    }
  }
  return "";
}

// The rank reduces its slice of everybody's tensor, in all_reduce straight into everybody's: one pass over memory, and
// nobody waits in the middle.
void ThreadGroup::reduce(Stream& stream, const Collective& call) {
  const int64_t total = call.in.elements();
  constexpr int64_t kLine = 64;  // elements: slices do not share cache lines
  const int64_t even = (total + size() - 1) / size();
  const int64_t slice = call.kind == Kind::reduce_scatter ? call.out.elements() : (even + kLine - 1) / kLine * kLine;
  const int64_t begin = std::min(slice * rank(), total), elements = std::min(slice, total - begin);
  if (elements == 0) return;
  dispatch_any(call.in.dtype(), [&]<class T>() {
    std::vector<const T*> inputs;
    std::vector<T*> outputs;
    for (int peer = 0; peer < size(); ++peer) {
      const Collective& other = meeting_->call_of(peer);
      inputs.push_back(other.in.data<T>() + begin);
      if (call.kind == Kind::all_reduce) outputs.push_back(other.out.data<T>() + begin);
    }
    if (call.kind == Kind::reduce_scatter) outputs.push_back(call.out.data<T>());
    reduce_elements<T>(stream, call.reduce, inputs, outputs, elements);
  });
}

void ThreadGroup::gather(Stream& stream, const Collective& call) {
  if (call.kind == Kind::broadcast)
    return copy_bytes(stream, call.out.raw(), meeting_->call_of(call.peer).in.raw(), call.in.bytes());
  const int64_t bytes = call.in.bytes();
  for (int peer = 0; peer < size(); ++peer)
    copy_bytes(stream, call.out.raw() + peer * bytes, meeting_->call_of(peer).in.raw(), bytes);
}

void ThreadGroup::exchange(Stream& stream, const Collective& call) {
  const int64_t bytes_per_row = row_bytes(call.in);
  int64_t to = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const Collective& other = meeting_->call_of(peer);
    const int64_t* sends = other.send_counts.data<int64_t>();
    int64_t from = 0;
    for (int before = 0; before < rank(); ++before) from += sends[before];
    copy_bytes(stream, call.out.raw() + to * bytes_per_row, other.in.raw() + from * bytes_per_row,
               sends[rank()] * bytes_per_row);
    to += sends[rank()];
  }
}

void ThreadGroup::exchange_equal(Stream& stream, const Collective& call) {
  const int64_t bytes = call.in.bytes() / size();
  for (int peer = 0; peer < size(); ++peer)
    copy_bytes(stream, call.out.raw() + peer * bytes, meeting_->call_of(peer).in.raw() + rank() * bytes, bytes);
}

void ThreadGroup::receive(const Collective& call, const std::function<void(const Collective& offer)>& take) {
  meeting_->recv(rank(), call, [&](const Collective& offer) -> std::string {
    if (offer.in.dtype() != call.out.dtype() || !(offer.in.shape() == call.out.shape()))
      return cat("axis ", name(), ": rank ", meeting_->world_rank(call.peer), " calls ", describe(offer), " to rank ",
                 meeting_->world_rank(rank()), ", which expects ", call.out.dtype(), " ", call.out.shape());
    take(offer);
    return "";
  });
}

}  // namespace witan
