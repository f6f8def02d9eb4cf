#include "witan/comm/threads/thread_group.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads.h"
#include "witan/comm/checks/call_terms.h"
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

}  // namespace

void ThreadGroup::perform(Stream& stream, const Collective& call) {
  require<CommError>(!stream.is_cuda(), "axis ", name(), ": ", name_of(call.kind), " on ", stream.device(),
                     " through a group of the host; make the rank's groups for its stream");
  switch (call.kind) {
    case Kind::send:
      return meeting_->send(rank(), call);
    case Kind::recv:
      return receive(call, [&](const Collective& offer) {
        met();
        copy_bytes(stream, call.out.raw(), offer.in.raw(), offer.in.bytes());
      });
    default:
      return meet(call, [&] {
        met();
        move(stream, call);
      });
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
    case Kind::reduce_scatter_uneven:
      return reduce(stream, call);
    case Kind::all_gather:
    case Kind::broadcast:
      return gather(stream, call);
    case Kind::all_gather_uneven:
      return all_gather_uneven(stream, call);
    case Kind::all_to_all:
      return exchange(stream, call);
    case Kind::all_to_all_equal:
      return exchange_equal(stream, call);
    default:
      return;
  }
}

std::string ThreadGroup::disagreement() const {
  std::vector<CallTerms> calls;
  for (int peer = 0; peer < size(); ++peer) calls.push_back(terms_of(meeting_->call_of(peer)));
  return witan::disagreement({name(), meeting_->ranks()}, calls);
}

// Which elements this rank sums: (first, count).
std::pair<int64_t, int64_t> ThreadGroup::reduced_by(const Collective& call) const {
  if (call.kind == Kind::reduce_scatter_uneven) return part_of(call.begins, rank());
  constexpr int64_t kLine = 64;  // elements: slices do not share cache lines
  const int64_t total = call.in.elements(), even = (total + size() - 1) / size();
  const int64_t slice = call.kind == Kind::reduce_scatter ? call.out.elements() : (even + kLine - 1) / kLine * kLine;
  const int64_t begin = std::min(slice * rank(), total);
  return {begin, std::min(slice, total - begin)};
}

// The rank reduces its slice of everybody's tensor, in all_reduce straight into everybody's: one pass over memory, and
// nobody waits in the middle.
void ThreadGroup::reduce(Stream& stream, const Collective& call) {
  const auto [begin, elements] = reduced_by(call);
  if (elements == 0) return;
  reduce_detail::dispatch_any(call.in.dtype(), [&, begin = begin, elements = elements]<class T>() {
    std::vector<const T*> inputs;
    std::vector<T*> outputs;
    for (int peer = 0; peer < size(); ++peer) {
      const Collective& other = meeting_->call_of(peer);
      inputs.push_back(other.in.data<T>() + begin);
      if (call.kind == Kind::all_reduce) outputs.push_back(other.out.data<T>() + begin);
    }
    if (call.kind == Kind::reduce_scatter) outputs.push_back(call.out.data<T>());
    if (call.kind == Kind::reduce_scatter_uneven) outputs.push_back(call.out.data<T>() + begin);
    reduce_detail::reduce_elements<T>(stream.pool(), call.reduce, inputs, outputs, elements);
  });
}

void ThreadGroup::gather(Stream& stream, const Collective& call) {
  if (call.kind == Kind::broadcast)
    return copy_bytes(stream, call.out.raw(), meeting_->call_of(call.peer).in.raw(), call.in.bytes());
  const int64_t bytes = call.in.bytes();
  for (int peer = 0; peer < size(); ++peer)
    copy_bytes(stream, call.out.raw() + peer * bytes, meeting_->call_of(peer).in.raw(), bytes);
}

void ThreadGroup::all_gather_uneven(Stream& stream, const Collective& call) {
  for (size_t i = 0; i < call.pieces.size(); ++i) {
    const auto& [tensor, owner] = call.pieces[i];
    copy_bytes(stream, tensor.raw(), meeting_->call_of(owner).pieces[i].tensor.raw(), tensor.bytes());
  }
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
    std::string verdict = misfit({name(), meeting_->ranks()}, call.peer, terms_of(offer), rank(), terms_of(call));
    if (!verdict.empty()) return verdict;
    take(offer);
    return "";
  });
}

}  // namespace witan
