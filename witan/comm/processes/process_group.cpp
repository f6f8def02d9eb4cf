#include "witan/comm/processes/process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/comm/checks/message_check.h"
#include "witan/comm/processes/rendezvous.h"
#include "witan/comm/reduce.h"

namespace witan {
namespace {

using Kind = Collective::Kind;
using Control = Links::Control;

// The same for all ends of a group, and for no other: by its name and ranks.
uint64_t channel_of(const std::string& name, const std::vector<int>& ranks) {
  Hasher hasher;
  hasher.update(name.data(), name.size() + 1);
  hasher.update(ranks.data(), ranks.size() * sizeof(int));
  return hasher.low64() & MessageEngine::kMostChannel;
}

void move_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

ProcessGroup::ProcessGroup(Links& links, std::vector<int> ranks, int here, std::string name, double deadline_seconds)
    : HostGroup(static_cast<int>(ranks.size()), here, std::move(name)),
      links_(links),
      ranks_(std::move(ranks)),
      channel_(channel_of(this->name(), ranks_)),
      sums_(channel_of(this->name() + ": sums", ranks_)),
      deadline_(deadline_seconds) {}

void ProcessGroup::agree(const Collective& call) {
  if (size() == 1) return;
  undisturbed(call, [&] {
    if (call.kind == Kind::send) return send_to_peer(call, /*with_data=*/false);
    if (call.kind == Kind::recv) return recv_from_peer(call, /*with_data=*/false);
    meet(call);
  });
}

void ProcessGroup::perform(Stream& stream, const Collective& call) {
  require<CommError>(!stream.is_cuda(), "axis ", name(), ": ", name_of(call.kind), " on ", stream.device(),
                     " through a group of the host; make the rank's groups for its stream");
  undisturbed(call, [&] {
    if (call.kind == Kind::send) return send_to_peer(call, /*with_data=*/true);
    if (call.kind == Kind::recv) return recv_from_peer(call, /*with_data=*/true);
    meet(call);
    met();
    move(stream, call);
  });
}

// What a rank was about when it learned that another one is gone, or has failed.
std::string ProcessGroup::busy_with(const Collective& call) const {
  return cat("; rank ", world_rank(rank()), " was in ", describe(call), " over axis ", name(),
             call.trace_context == nullptr || describe(*call.trace_context).empty() ? "" : "," + in_words(call));
}

// Runs body(); when it throws, nothing of what others still send is written to this rank's tensors.
template <class Body>
void ProcessGroup::undisturbed(const Collective& call, const Body& body) {
  const auto drop = [&] {
    links_.drop(channel_);
    links_.drop(sums_);
  };
  try {
    body();
  } catch (const LostError& error) {
    drop();
    throw LostError(error.what() + busy_with(call));
  } catch (const AbortedError& error) {
    drop();
    throw AbortedError(error.what() + busy_with(call));
  } catch (...) {
    drop();
    throw;
  }
}

template <class Body>
void ProcessGroup::for_others(const Body& body) const {
  for (int step = 1; step < size(); ++step) body((rank() + step) % size());
}

void ProcessGroup::send_control(int peer, Control kind, std::span<const std::byte> bytes) {
  links_.send_control(world_rank(peer), channel_, kind, bytes, deadline_);
}

void ProcessGroup::disagree(const std::string& verdict) {
  const ProcessFailure failure = links_.fail({ProcessFailure::Kind::disagreement, links_.rank(), verdict});
  throw_failure(failure, links_.host(failure.rank));
}

// "rank 3", "ranks 1, 2": those for whom there(peer) is false; only those of them that have returned.
std::string ProcessGroup::missing(Links::View& view, const std::function<bool(Links::View&, int peer)>& there,
                                  bool only_left) const {
  std::string list;
  int count = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || there(view, peer) || (only_left && !view.left(world_rank(peer)))) continue;
    list += cat(count++ > 0 ? ", " : "", world_rank(peer));
  }
  return count == 0 ? "" : cat(count == 1 ? "rank " : "ranks ", list);
}

std::vector<Links::Bytes> ProcessGroup::controls_of_all(const Collective& call, Control kind) {
  std::vector<Links::Bytes> controls(static_cast<size_t>(size()));
  const auto there = [&](Links::View& view, int peer) {
    return view.has_control(world_rank(peer), channel_, kind) && view.sent(world_rank(peer), channel_);
  };
  links_.wait(
      [&](Links::View& view) {
        for (int peer = 0; peer < size(); ++peer)
          if (peer != rank() && !there(view, peer)) return false;
        for (int peer = 0; peer < size(); ++peer)
          if (peer != rank()) controls[static_cast<size_t>(peer)] = view.next_control(world_rank(peer), channel_, kind);
        return true;
      },
      [&](Links::View& view) {
        const std::string gone = missing(view, there, true);
        return gone.empty() ? ""
                            : cat("axis ", name(), ": ", gone, " returned, but rank ", world_rank(rank()),
                                  " waits for it in ", describe(call), in_words(call));
      },
      [&](Links::View& view) {
        return cat("axis ", name(), ": ", missing(view, there, false), " did not reach ", describe(call), " within ",
                   deadline_, " s; rank ", world_rank(rank()), " waited", in_words(call));
      },
      deadline_);
  return controls;
}

void ProcessGroup::meet(const Collective& call) {
  const CallTerms mine = terms_of(call);
  const auto words = pack(mine);
  for_others([&](int peer) { send_control(peer, Control::call, words); });
  const auto controls = controls_of_all(call, Control::call);
  std::vector<PackedTerms> theirs;
  std::vector<CallTerms> calls;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      calls.push_back(mine);
      continue;
    }
    theirs.push_back(unpack(controls[static_cast<size_t>(peer)], size(),
                            world_rank(peer)));  // moved, its counts stay where they are
    calls.push_back(theirs.back().terms);
  }
  if (const std::string verdict = disagreement({name(), ranks_}, calls); !verdict.empty()) disagree(verdict);
}

void ProcessGroup::move(Stream& stream, const Collective& call) {
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_uneven:
      return reduce(stream, call);
    case Kind::all_gather:
      return gather(call);
    case Kind::all_gather_uneven:
      return all_gather_uneven(call);
    case Kind::broadcast:
      return broadcast(call);
    case Kind::all_to_all:
      return exchange(call, call.send_counts.data<int64_t>(), call.recv_counts.data<int64_t>());
    case Kind::all_to_all_equal: {
      const std::vector<int64_t> rows(static_cast<size_t>(size()), call.in.size(0) / size());
      return exchange(call, rows.data(), rows.data());
    }
    default:
      return;
  }
}

void ProcessGroup::trade(const Collective& call, const std::vector<Part>& out, const std::vector<Part>& in) {
  for (const Part& part : in) take(part, channel_);
  if (links_.data_are_asked_for()) {
    for_others([&](int peer) { send_control(peer, Control::ready); });
    controls_of_all(call, Control::ready);
  }
  for (const Part& part : out) send_data(part, channel_);
}

void ProcessGroup::take(const Part& part, uint64_t channel) {
  links_.take(world_rank(part.peer), channel, part.at, part.bytes);
  if (!checks_messages() || part.bytes == 0) return;
  uint64_t& sum = taken_[channel].emplace_back(Taken{part, 0}).sum;
  links_.take(world_rank(part.peer), channel, reinterpret_cast<std::byte*>(&sum), sizeof sum);
}

void ProcessGroup::send_data(const Part& part, uint64_t channel) {
  const bool checks = checks_messages() && part.bytes > 0;
  if (checks) sent_sums_.push_back(message_sum(part.at, part.bytes));
  links_.send_data(world_rank(part.peer), channel, part.at, part.bytes, deadline_);
  if (checks)
    links_.send_data(world_rank(part.peer), channel, reinterpret_cast<const std::byte*>(&sent_sums_.back()),
                     sizeof(uint64_t), deadline_);
}

void ProcessGroup::verify(const Collective& call, uint64_t channel) {
  if (!checks_messages()) return;
  for (const auto& [part, sum] : taken_[channel])
    if (message_sum(part.at, part.bytes) != sum)
      disagree(corrupted_message({name(), world_rank(part.peer), world_rank(rank())}, call, part.bytes));
  taken_[channel].clear();
  sent_sums_.clear();
}

void ProcessGroup::await_data(const Collective& call, uint64_t channel) {
  const auto there = [&](Links::View& view, int peer) {
    return view.arrived(world_rank(peer), channel) && view.sent(world_rank(peer), channel);
  };
  links_.wait(
      [&](Links::View& view) { return missing(view, there, false).empty(); },
      [&](Links::View& view) {
        const std::string gone = missing(view, there, true);
        return gone.empty()
                   ? ""
                   : cat("axis ", name(), ": ", gone, " returned in the middle of ", describe(call), in_words(call));
      },
      [&](Links::View& view) {
        return cat("axis ", name(), ": ", missing(view, there, false), " did not send its part of ", describe(call),
                   " within ", deadline_, " s; rank ", world_rank(rank()), " waited", in_words(call));
      },
      deadline_);
  verify(call, channel);
}

// What a rank ends with of a reduction: (first element of in, elements). Of an all_reduce, of what is left from
// `begin`.
std::pair<int64_t, int64_t> ProcessGroup::scattered_to(const Collective& call, int rank) const {
  if (call.kind == Kind::reduce_scatter_uneven) return part_of(call.begins, rank);
  return {rank * call.out.elements(), call.out.elements()};
}

// Elements of a slice: a piece is one for each rank, or, of what is scattered, one of each rank's part.
void ProcessGroup::reduce(Stream& stream, const Collective& call) {
  constexpr int64_t kMostParts = int64_t{1} << 20;  // bytes
  const bool scatters = call.kind != Kind::all_reduce;
  int64_t total = call.in.elements();
  if (scatters) {
    total = 0;
    for (int r = 0; r < size(); ++r) total = std::max(total, scattered_to(call, r).second);
  }
  const int64_t most = std::max<int64_t>(kMostParts / size() / size_of(call.in.dtype()), 1);
  int64_t slice = 0;
  for (int64_t begin = 0; begin < total; begin += scatters ? slice : slice * size()) {
    slice = std::min(most, scatters ? total - begin : (total - begin + size() - 1) / size());
    reduce_piece(stream, call, begin, slice);
  }
}

void ProcessGroup::reduce_piece(Stream& stream, const Collective& call, int64_t begin, int64_t slice) {
  const bool scatters = call.kind != Kind::all_reduce;
  const int64_t item = size_of(call.in.dtype()), total = call.in.elements();
  const auto from = [&](int r) {
    return scatters ? scattered_to(call, r).first + begin : std::min(begin + r * slice, total);
  };
  const auto count = [&](int r) {
    return scatters ? std::clamp<int64_t>(scattered_to(call, r).second - begin, 0, slice) : from(r + 1) - from(r);
  };
  const int64_t own = count(rank());
  parts_.resize(static_cast<size_t>(size() * slice * item));

  std::vector<Part> out, in;
  for_others([&](int peer) {
    out.push_back({peer, call.in.raw() + from(peer) * item, count(peer) * item});
    in.push_back({peer, parts_.data() + peer * slice * item, own * item});
    if (!scatters) take({peer, call.out.raw() + from(peer) * item, count(peer) * item}, sums_);
  });
  trade(call, out, in);
  await_data(call, channel_);

  std::byte* sums = call.out.raw() + (call.kind == Kind::reduce_scatter ? begin : from(rank())) * item;
  reduce_detail::dispatch_any(call.in.dtype(), [&]<class T>() {
    std::vector<const T*> inputs;
    for (int peer = 0; peer < size(); ++peer)
      inputs.push_back(reinterpret_cast<const T*>(peer == rank() ? call.in.raw() + from(rank()) * item
                                                                 : parts_.data() + peer * slice * item));
    reduce_detail::reduce_elements<T>(stream.pool(), call.reduce, inputs, {reinterpret_cast<T*>(sums)}, own);
  });
  if (scatters) return;
  for_others([&](int peer) { send_data({peer, sums, own * item}, sums_); });
  await_data(call, sums_);
}

void ProcessGroup::gather(const Collective& call) {
  const int64_t bytes = call.in.bytes();
  std::vector<Part> out, in;
  for_others([&](int peer) {
    out.push_back({peer, call.in.raw(), bytes});
    in.push_back({peer, call.out.raw() + peer * bytes, bytes});
  });
  move_bytes(call.out.raw() + rank() * bytes, call.in.raw(), bytes);
  trade(call, out, in);
  await_data(call, channel_);
}

void ProcessGroup::all_gather_uneven(const Collective& call) {
  std::vector<Part> out, in;
  for_others([&](int peer) {
    for (const auto& [tensor, owner] : call.pieces) {
      if (owner == rank()) out.push_back({peer, tensor.raw(), tensor.bytes()});
      if (owner == peer) in.push_back({peer, tensor.raw(), tensor.bytes()});
    }
  });
  trade(call, out, in);
  await_data(call, channel_);
}

void ProcessGroup::broadcast(const Collective& call) {
  std::vector<Part> out, in;
  if (rank() == call.peer)
    for_others([&](int peer) { out.push_back({peer, call.in.raw(), call.in.bytes()}); });
  else
    in.push_back({call.peer, call.out.raw(), call.out.bytes()});
  trade(call, out, in);
  await_data(call, channel_);
}

void ProcessGroup::exchange(const Collective& call, const int64_t* sends, const int64_t* receives) {
  const int64_t row = row_bytes(call.in);
  std::vector<std::byte*> from(static_cast<size_t>(size())), to(from);
  std::byte *next_from = call.in.raw(), *next_to = call.out.raw();
  for (int peer = 0; peer < size(); ++peer) {
    from[static_cast<size_t>(peer)] = std::exchange(next_from, next_from + sends[peer] * row);
    to[static_cast<size_t>(peer)] = std::exchange(next_to, next_to + receives[peer] * row);
  }
  std::vector<Part> out, in;
  for_others([&](int peer) {
    out.push_back({peer, from[static_cast<size_t>(peer)], sends[peer] * row});
    in.push_back({peer, to[static_cast<size_t>(peer)], receives[peer] * row});
  });
  move_bytes(to[static_cast<size_t>(rank())], from[static_cast<size_t>(rank())], sends[rank()] * row);
  trade(call, out, in);
  await_data(call, channel_);
}

// Why the peer of a send or recv will never answer; empty: it may.
std::string ProcessGroup::lost_peer(Links::View& view, const Collective& call) const {
  const int peer = world_rank(call.peer);
  const auto who = [&] {
    return cat("axis ", name(), ": rank ", world_rank(rank()), " calls ", describe(call), in_words(call),
               call.kind == Kind::send ? " to rank " : " from rank ", peer);
  };
  // A peer that came to a collective without this rank can leave it only with this rank.
  if (view.has_control(peer, channel_, Control::call))
    return cat(who(), ", which calls ",
               name_of(unpack(view.first_control(peer, channel_, Control::call), size(), peer).terms.kind), " instead");
  if (call.kind == Kind::send && view.has_control(peer, channel_, Control::offer)) {
    // Both find it out, and say the same.
    const CallTerms theirs = unpack(view.first_control(peer, channel_, Control::offer), size(), peer).terms;
    const int here = world_rank(rank()), low = std::min(here, peer), high = std::max(here, peer);
    return cat("axis ", name(), ": rank ", low, " calls ", here == low ? describe(call) : describe(theirs), " to rank ",
               high, ", which sends to rank ", low, " at the same time; one of them must receive first");
  }
  if (view.left(peer)) return cat(who(), ", which has returned");
  return "";
}

Links::Bytes ProcessGroup::control_of_peer(const Collective& call, Control kind) {
  const int peer = world_rank(call.peer);
  Links::Bytes control;
  links_.wait(
      [&](Links::View& view) {
        if (!view.has_control(peer, channel_, kind) || !view.sent(peer, channel_)) return false;
        control = view.next_control(peer, channel_, kind);
        return true;
      },
      [&](Links::View& view) { return lost_peer(view, call); },
      [&](Links::View&) {
        return cat("axis ", name(), ": rank ", peer, " did not answer ", describe(call), " of rank ",
                   world_rank(rank()), in_words(call), " within ", deadline_, " s");
      },
      deadline_);
  return control;
}

void ProcessGroup::send_to_peer(const Collective& call, bool with_data) {
  send_control(call.peer, Control::offer, pack(terms_of(call)));
  const Links::Bytes verdict = control_of_peer(call, Control::answer);
  if (!verdict.empty()) disagree({reinterpret_cast<const char*>(verdict.data()), verdict.size()});
  met();
  if (!with_data) return;
  send_data({call.peer, call.in.raw(), call.in.bytes()}, channel_);
  links_.wait_sent({world_rank(call.peer)}, channel_, deadline_);
  sent_sums_.clear();
}

void ProcessGroup::recv_from_peer(const Collective& call, bool with_data) {
  const PackedTerms offer = unpack(control_of_peer(call, Control::offer), size(), world_rank(call.peer));
  const std::string verdict = misfit({name(), ranks_}, call.peer, offer.terms, rank(), terms_of(call));
  if (verdict.empty() && with_data) take({call.peer, call.out.raw(), call.out.bytes()}, channel_);
  send_control(call.peer, Control::answer, std::as_bytes(std::span(verdict)));
  if (!verdict.empty()) disagree(verdict);
  met();
  with_data ? await_data(call, channel_) : links_.wait_sent({world_rank(call.peer)}, channel_, deadline_);
}

}  // namespace witan
