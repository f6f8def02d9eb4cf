#include "witan/comm/threads/thread_group.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/checks/call_terms.h"
#include "witan/comm/checks/fingerprint.h"
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
      return meeting_->send(rank(), with_sums(call), deadline());
    case Kind::recv:
      return receive(call, [&](const Collective& offer) {
        met();
        copy_bytes(stream, call.out.raw(), offer.in.raw(), offer.in.bytes());
        verify(call, offer, call.peer, 0, call.out.raw(), call.out.bytes());
      });
    default:
      meet(with_sums(call), [&] {
        met();
        move(stream, call);
      });
      if (checks_messages() && call.kind == Kind::all_reduce) verify_results(call);
  }
}

// Checksums by receiver; one for data that all ranks get; for pieces one each. An all_reduce has another one for the
// sums of this rank's slice.
Collective ThreadGroup::with_sums(const Collective& call) {
  Collective with = call;
  if (!checks_messages()) return with;
  sums_.assign(std::max(call.pieces.size(), static_cast<size_t>(size()) + 1), 0);
  const auto add = [&](size_t which, const Tensor& in, int64_t first, int64_t bytes) {
    if (first < 0 || bytes < 0 || first + bytes > in.bytes()) return;  // counts that the meeting is about to refuse
    sums_[which] = message_sum(in.raw() + first, bytes);
  };
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_uneven:
      for (int peer = 0; peer < size(); ++peer) {
        const auto [begin, elements] = reduced_by(call, peer);
        const int64_t item = size_of(call.in.dtype());
        if (peer != rank()) add(static_cast<size_t>(peer), call.in, begin * item, elements * item);
      }
      break;
    case Kind::all_to_all: {
      const int64_t row = row_bytes(call.in), *sends = call.send_counts.data<int64_t>();
      for (int64_t peer = 0, first = 0; peer < size(); first += sends[peer++] * row)
        add(static_cast<size_t>(peer), call.in, first, sends[peer] * row);
      break;
    }
    case Kind::all_to_all_equal:
      for (int64_t peer = 0, bytes = call.in.bytes() / size(); peer < size(); ++peer)
        add(static_cast<size_t>(peer), call.in, peer * bytes, bytes);
      break;
    case Kind::all_gather_uneven:
      for (size_t i = 0; i < call.pieces.size(); ++i)
        if (call.pieces[i].owner == rank()) add(i, call.pieces[i].tensor, 0, call.pieces[i].tensor.bytes());
      break;
    case Kind::all_gather:
    case Kind::send:
      add(0, call.in, 0, call.in.bytes());
      break;
    case Kind::broadcast:
      if (call.peer == rank()) add(0, call.in, 0, call.in.bytes());
      break;
    default:
      break;
  }
  with.sums = sums_;
  return with;
}

void ThreadGroup::verify(const Collective& call, const Collective& from, int peer, size_t which, const std::byte* bytes,
                         int64_t count) {
  if (!checks_messages() || peer == rank() || count == 0 || !corrupted_.empty()) return;
  if (message_sum(bytes, count) == from.sums[which]) return;
  corrupted_ = corrupted_message({name(), world_rank(peer), world_rank(rank())}, call, count);
}

void ThreadGroup::verify_results(const Collective& call) {
  Collective with = call;
  with.sums = sums_;
  meet(with, [&] {
    const int64_t item = size_of(call.out.dtype());
    for (int peer = 0; peer < size(); ++peer) {
      const auto [begin, elements] = reduced_by(call, peer);
      verify(call, meeting_->call_of(peer), peer, static_cast<size_t>(size()), call.out.raw() + begin * item,
             elements * item);
    }
  });
}

void ThreadGroup::agree(const Collective& call) {
  if (size() == 1) return;
  switch (call.kind) {
    case Kind::send:
      return meeting_->send(rank(), call, deadline());
    case Kind::recv:
      return receive(call, [](const Collective&) {});
    default:
      return meet(call, [] {});
  }
}

void ThreadGroup::meet(const Collective& call, const std::function<void()>& work) {
  meeting_->enter(rank(), call, deadline());
  std::string verdict;
  {
    struct Leave {
      Rendezvous& meeting;
      int rank;
      ~Leave() { meeting.leave(rank); }
    } const leave{*meeting_, rank()};
    verdict = disagreement();
    if (verdict.empty()) {
      work();
      verdict = corrupted_;
    }
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

// The elements that a rank sums: (first, count).
std::pair<int64_t, int64_t> ThreadGroup::reduced_by(const Collective& call, int rank) const {
  if (call.kind == Kind::reduce_scatter_uneven) return part_of(call.begins, rank);
  constexpr int64_t kLine = 64;  // elements: slices do not share cache lines
  const int64_t total = call.in.elements(), even = (total + size() - 1) / size();
  const int64_t slice = call.kind == Kind::reduce_scatter ? call.out.elements() : (even + kLine - 1) / kLine * kLine;
  const int64_t begin = std::min(slice * rank, total);
  return {begin, std::min(slice, total - begin)};
}

// The rank reduces its slice of everybody's tensor, in all_reduce straight into everybody's: one pass over memory, and
// nobody waits in the middle.
void ThreadGroup::reduce(Stream& stream, const Collective& call) {
  const auto [begin, elements] = reduced_by(call, rank());
  const int64_t item = size_of(call.in.dtype()), bytes = elements * item;
  for (int peer = 0; peer < size(); ++peer) {
    const Collective& other = meeting_->call_of(peer);
    verify(call, other, peer, static_cast<size_t>(rank()), other.in.raw() + begin * item, bytes);
  }
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
  if (checks_messages() && call.kind == Kind::all_reduce)
    sums_.back() = message_sum(call.out.raw() + begin * item, bytes);
}

void ThreadGroup::gather(Stream& stream, const Collective& call) {
  const int64_t bytes = call.in.bytes();
  const auto take = [&](int peer, std::byte* to) {
    copy_bytes(stream, to, meeting_->call_of(peer).in.raw(), bytes);
    verify(call, meeting_->call_of(peer), peer, 0, to, bytes);
  };
  if (call.kind == Kind::broadcast) return take(call.peer, call.out.raw());
  for (int peer = 0; peer < size(); ++peer) take(peer, call.out.raw() + peer * bytes);
}

void ThreadGroup::all_gather_uneven(Stream& stream, const Collective& call) {
  for (size_t i = 0; i < call.pieces.size(); ++i) {
    const auto& [tensor, owner] = call.pieces[i];
    copy_bytes(stream, tensor.raw(), meeting_->call_of(owner).pieces[i].tensor.raw(), tensor.bytes());
    verify(call, meeting_->call_of(owner), owner, i, tensor.raw(), tensor.bytes());
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
    verify(call, other, peer, static_cast<size_t>(rank()), call.out.raw() + to * bytes_per_row,
           sends[rank()] * bytes_per_row);
    to += sends[rank()];
  }
}

void ThreadGroup::exchange_equal(Stream& stream, const Collective& call) {
  const int64_t bytes = call.in.bytes() / size();
  for (int peer = 0; peer < size(); ++peer) {
    copy_bytes(stream, call.out.raw() + peer * bytes, meeting_->call_of(peer).in.raw() + rank() * bytes, bytes);
    verify(call, meeting_->call_of(peer), peer, static_cast<size_t>(rank()), call.out.raw() + peer * bytes, bytes);
  }
}

void ThreadGroup::receive(const Collective& call, const std::function<void(const Collective& offer)>& take) {
  meeting_->recv(rank(), call, deadline(), [&](const Collective& offer) -> std::string {
    std::string verdict = misfit({name(), meeting_->ranks()}, call.peer, terms_of(offer), rank(), terms_of(call));
    if (!verdict.empty()) return verdict;
    take(offer);
    return corrupted_;
  });
}

}  // namespace witan
