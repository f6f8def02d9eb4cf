#include "witan/comm/processes/process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/hash.h"
#include "witan/comm/checks/fingerprint.h"
#include "witan/comm/failure.h"
#include "witan/comm/reduce.h"

namespace witan {
namespace {

using Kind = Collective::Kind;
using Control = Links::Control;

// A channel that is the same for all ends of a group and unique to it, from its name and ranks.
uint64_t channel_of(const std::string& name, const std::vector<int>& ranks) {
  Hasher hasher;
  hasher.update(name.data(), name.size() + 1);
  hasher.update(ranks.data(), ranks.size() * sizeof(int));
  return hasher.low64() & MessageEngine::kMostChannel;
}

void move_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The head of a message with the terms of a call.
struct MessageHead {
  uint64_t number, digest;  // of the log of calls before it
};

MessageHead head_in(const Links::Bytes& call, int rank) {
  MessageHead head{};
  require<CommError>(call.size() > sizeof head, "malformed collective descriptor from rank ", rank);
  std::memcpy(&head, call.data(), sizeof head);
  return head;
}

uint64_t number_in(const Links::Bytes& call, int rank) {
  return head_in(call, rank).number;
}

std::span<const std::byte> terms_in(const Links::Bytes& call, int rank) {
  head_in(call, rank);
  return std::span(call).subspan(sizeof(MessageHead));
}

}  // namespace

ProcessGroup::ProcessGroup(Links& links, std::vector<int> ranks, int here, std::string name, double deadline_seconds)
    : HostGroup(static_cast<int>(ranks.size()), here, std::move(name), deadline_seconds),
      links_(links),
      ranks_(std::move(ranks)),
      channel_(channel_of(this->name(), ranks_)),
      sums_(channel_of(this->name() + ": sums", ranks_)),
      log_channel_(channel_of(this->name() + ": log", ranks_)) {}

void ProcessGroup::agree(const Collective& call) {
  if (size() == 1) return;
  undisturbed(call, [&] {
    if (call.kind == Kind::send) return send_to_peer(call, /*with_data=*/false);
    if (call.kind == Kind::recv) return recv_from_peer(call, /*with_data=*/false);
    ++calls_;
    meet(call);
  });
}

void ProcessGroup::perform(Stream& stream, const Collective& call) {
  require<CommError>(!stream.is_cuda(), "axis ", name(), ": ", name_of(call.kind), " on ", stream.device(),
                     " through a group of the host; make the rank's groups for its stream");
  undisturbed(call, [&] {
    if (call.kind == Kind::send) return send_to_peer(call, /*with_data=*/true);
    if (call.kind == Kind::recv) return recv_from_peer(call, /*with_data=*/true);
    ++calls_;
    terms_ = hash_of(terms_without_counts(call));
    met_ = !tags_data(call);
    if (met_) {
      meet(call);
      met();
    }
    move(stream, call);
  });
}

// Describes the call in which a rank learned that another one is gone or has failed.
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

void ProcessGroup::send_control(int peer, Control kind, std::span<const std::byte> bytes) {
  links_.send_control(world_rank(peer), channel_, kind, bytes, deadline().seconds);
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

std::function<std::string(Links::View&)> ProcessGroup::returned(const Collective& call, const There& there) const {
  return [this, &call, there](Links::View& view) {
    const std::string gone = missing(view, there, true);
    return gone.empty() ? ""
                        : cat("axis ", name(), ": ", gone, " returned, but rank ", world_rank(rank()),
                              " waits for it in ", describe(call), in_words(call));
  };
}

std::function<std::string(Links::View&)> ProcessGroup::late(const Collective& call, const There& there) const {
  return [this, &call, there](Links::View& view) {
    const std::string who = missing(view, there, false);
    return deadline().message(who, cat("axis ", name(), ": ", who, " did not reach ", describe(call), " within ",
                                       deadline().seconds, " s; rank ", world_rank(rank()), " waited", in_words(call)));
  };
}

// Whether data of another call cannot be taken for this call's, and every rank gets some from every other one.
bool ProcessGroup::tags_data(const Collective& call) const {
  if (links_.data_are_asked_for()) return false;
  switch (call.kind) {
    case Kind::send:
    case Kind::recv:
    case Kind::barrier:
    case Kind::broadcast:
      return false;
    case Kind::all_reduce:
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_uneven:
      return call.in.elements() > 0;
    case Kind::all_to_all:
      return counts_fit(terms_of(call));
    default:
      return true;
  }
}

// A tag that is equal on this rank and on the peer if their calls agree, and practically never otherwise. For an uneven
// exchange it includes the rows between the two, both ways.
uint64_t ProcessGroup::data_tag(const Collective& call, uint64_t channel, int peer) const {
  Hasher hasher;
  const auto add = [&](auto number) { hasher.update(&number, sizeof number); };
  add(channel);
  add(calls_);
  add(terms_);
  if (call.kind == Kind::all_to_all) {
    const int64_t sends = call.send_counts.data<int64_t>()[peer], receives = call.recv_counts.data<int64_t>()[peer];
    add(rank() < peer ? sends : receives);
    add(rank() < peer ? receives : sends);
  }
  return hasher.low64() & MessageEngine::kMostTag;
}

uint64_t ProcessGroup::digest_in(const Links::Bytes& call, int rank) {
  return head_in(call, rank).digest;
}

void ProcessGroup::send_call(const Collective& call) {
  const MessageHead head{calls_, log_.digest()};
  Links::Bytes words(sizeof head);
  std::memcpy(words.data(), &head, sizeof head);
  const auto terms = pack(terms_of(call));
  words.insert(words.end(), terms.begin(), terms.end());
  for_others([&](int peer) { send_control(peer, Control::call, words); });
}

// Drops calls that this rank has completed, whose senders had waited for it.
void ProcessGroup::forget_calls_before(uint64_t number, Links::View& view) const {
  for_others([&](int peer) {
    const int from = world_rank(peer);
    while (view.has_control(from, channel_, Control::call) &&
           number_in(view.first_control(from, channel_, Control::call), from) < number)
      view.next_control(from, channel_, Control::call);
  });
}

// Receives calls into `received`. Returns whether those of all other ranks have arrived.
bool ProcessGroup::receive_calls(Links::View& view, RankCalls& received) const {
  forget_calls_before(calls_, view);
  bool all = true;
  for_others([&](int peer) {
    Links::Bytes& theirs = received[static_cast<size_t>(peer)];
    const int from = world_rank(peer);
    if (theirs.empty() && view.has_control(from, channel_, Control::call) &&
        number_in(view.first_control(from, channel_, Control::call), from) == calls_)
      theirs = view.next_control(from, channel_, Control::call);
    all &= !theirs.empty() && view.sent(from, channel_);
  });
  return all;
}

// Compares this rank's call with those received.
void ProcessGroup::require_same_calls(const Collective& call, const RankCalls& received) {
  const Links::Bytes own = pack(terms_of(call));
  std::vector<std::span<const std::byte>> terms;
  for (int peer = 0; peer < size(); ++peer) {
    const Links::Bytes& words = received[static_cast<size_t>(peer)];
    if (peer == rank())
      terms.emplace_back(own);
    else
      terms.push_back(words.empty() ? std::span<const std::byte>() : terms_in(words, world_rank(peer)));
  }
  if (const std::string verdict = disagreement({name(), ranks_}, terms); !verdict.empty()) disagree(verdict);
}

// For data that is late: its sender may be making another call. Returns when the data has arrived, or when no received
// call differs.
void ProcessGroup::compare_with_senders(const Collective& call, uint64_t channel) {
  send_call(call);
  RankCalls received(static_cast<size_t>(size()));
  const There there = data_there(channel);
  const auto all_there = [&](Links::View& view) { return missing(view, there, false).empty(); };
  const There arrived = [&](Links::View& view, int peer) {
    return !received[static_cast<size_t>(peer)].empty() || there(view, peer);
  };
  const auto all_arrived = [&](Links::View& view) {
    return receive_calls(view, received) || missing(view, arrived, false).empty();
  };
  links_.wait(all_arrived, returned(call, there), late(call, there), deadline().seconds);
  // If ranks disagree, those whose data came will send their calls too, and then all find the same message; except for
  // ranks of an exchange whose own rows match, which have gone on.
  const auto all_received = [&](Links::View& view) { return all_there(view) || receive_calls(view, received); };
  links_.wait_some(all_received, returned(call, there), kCompareAfterSeconds);
  require_same_calls(call, received);
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

void ProcessGroup::trade(const Collective& call, std::vector<Part> out, std::vector<Part> in) {
  for (const Part& part : in) take(part, channel_, data_tag(call, channel_, part.peer));
  if (links_.data_are_asked_for()) {
    for_others([&](int peer) { send_control(peer, Control::ready); });
    await_ready(call);
  }
  for (const Part& part : out) send_data(part, channel_, data_tag(call, channel_, part.peer));
}

void ProcessGroup::take(const Part& part, uint64_t channel, uint64_t tag) {
  links_.take(world_rank(part.peer), channel, tag, part.at, part.bytes);
  if (!checks_messages() || part.bytes == 0) return;
  uint64_t& sum = taken_[channel].emplace_back(Taken{part, 0}).sum;
  links_.take(world_rank(part.peer), channel, tag, reinterpret_cast<std::byte*>(&sum), sizeof sum);
}

void ProcessGroup::send_data(const Part& part, uint64_t channel, uint64_t tag) {
  const bool checks = checks_messages() && part.bytes > 0;
  if (checks) sent_sums_.push_back(message_sum(part.at, part.bytes));
  links_.send_data(world_rank(part.peer), channel, tag, part.at, part.bytes, deadline().seconds);
  if (checks)
    links_.send_data(world_rank(part.peer), channel, tag, reinterpret_cast<const std::byte*>(&sent_sums_.back()),
                     sizeof(uint64_t), deadline().seconds);
}

void ProcessGroup::verify(const Collective& call, uint64_t channel) {
  if (!checks_messages()) return;
  for (const auto& [part, sum] : taken_[channel])
    if (message_sum(part.at, part.bytes) != sum)
      disagree(corrupted_message({name(), world_rank(part.peer), world_rank(rank())}, call, part.bytes));
  taken_[channel].clear();
  sent_sums_.clear();
}

void ProcessGroup::await_ready(const Collective& call) {
  const There there = [&](Links::View& view, int peer) {
    return view.has_control(world_rank(peer), channel_, Control::ready);
  };
  const auto all_there = [&](Links::View& view) {
    if (!missing(view, there, false).empty()) return false;
    for_others([&](int peer) { view.next_control(world_rank(peer), channel_, Control::ready); });
    return true;
  };
  links_.wait(all_there, returned(call, there), late(call, there), deadline().seconds);
}

ProcessGroup::There ProcessGroup::data_there(uint64_t channel) const {
  return [this, channel](Links::View& view, int peer) {
    return view.arrived(world_rank(peer), channel) && view.sent(world_rank(peer), channel);
  };
}

void ProcessGroup::await_data(const Collective& call, uint64_t channel) {
  const There there = data_there(channel);
  const auto all_there = [&](Links::View& view) {
    forget_calls_before(calls_, view);
    return missing(view, there, false).empty();
  };
  if (tags_data(call)) {
    if (!links_.wait_some(all_there, returned(call, there), std::min(kCompareAfterSeconds, deadline().seconds / 4))) {
      compare_with_senders(call, channel);
      links_.wait(all_there, returned(call, there), late(call, there), deadline().seconds);
    }
    if (!std::exchange(met_, true)) met();
    return verify(call, channel);
  }
  const auto returned_early = [&](Links::View& view) {
    const std::string gone = missing(view, there, true);
    return gone.empty()
               ? ""
               : cat("axis ", name(), ": ", gone, " returned in the middle of ", describe(call), in_words(call));
  };
  const auto unfinished = [&](Links::View& view) {
    const std::string who = missing(view, there, false);
    return deadline().message(who,
                              cat("axis ", name(), ": ", who, " did not send its part of ", describe(call), " within ",
                                  deadline().seconds, " s; rank ", world_rank(rank()), " waited", in_words(call)));
  };
  links_.wait(all_there, returned_early, unfinished, deadline().seconds);
  verify(call, channel);
}

// The slice of a reduction that a rank ends with: (first element of in, elements). For an all_reduce, the slice of the
// elements from `begin` on.
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
    if (!scatters)
      take({peer, call.out.raw() + from(peer) * item, count(peer) * item}, sums_, data_tag(call, sums_, peer));
  });
  trade(call, std::move(out), std::move(in));
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
  for_others([&](int peer) { send_data({peer, sums, own * item}, sums_, data_tag(call, sums_, peer)); });
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
  trade(call, std::move(out), std::move(in));
  await_data(call, channel_);
}

void ProcessGroup::all_gather_uneven(const Collective& call) {
  std::vector<Part> out, in;
  for_others([&](int peer) {
    // An empty one of those that own nothing, too: a rank that has something from every other one knows that all came.
    out.push_back({peer, nullptr, 0});
    in.push_back({peer, nullptr, 0});
    for (const auto& [tensor, owner] : call.pieces) {
      if (owner == rank()) out.push_back({peer, tensor.raw(), tensor.bytes()});
      if (owner == peer) in.push_back({peer, tensor.raw(), tensor.bytes()});
    }
  });
  trade(call, std::move(out), std::move(in));
  await_data(call, channel_);
}

void ProcessGroup::broadcast(const Collective& call) {
  std::vector<Part> out, in;
  if (rank() == call.peer)
    for_others([&](int peer) { out.push_back({peer, call.in.raw(), call.in.bytes()}); });
  else
    in.push_back({call.peer, call.out.raw(), call.out.bytes()});
  trade(call, std::move(out), std::move(in));
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
  trade(call, std::move(out), std::move(in));
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
  forget_calls_before(calls_ + 1, view);
  if (view.has_control(peer, channel_, Control::call))
    return cat(
        who(), ", which calls ",
        name_of(unpack(terms_in(view.first_control(peer, channel_, Control::call), peer), size(), peer).terms.kind),
        " instead");
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
        const std::string who = cat("rank ", peer);
        return deadline().message(who, cat("axis ", name(), ": ", who, " did not answer ", describe(call), " of rank ",
                                           world_rank(rank()), in_words(call), " within ", deadline().seconds, " s"));
      },
      deadline().seconds);
  return control;
}

void ProcessGroup::send_to_peer(const Collective& call, bool with_data) {
  send_control(call.peer, Control::offer, pack(terms_of(call)));
  const Links::Bytes verdict = control_of_peer(call, Control::answer);
  if (!verdict.empty()) disagree({reinterpret_cast<const char*>(verdict.data()), verdict.size()});
  met();
  if (!with_data) return;
  send_data({call.peer, call.in.raw(), call.in.bytes()}, channel_, channel_);
  links_.wait_sent({world_rank(call.peer)}, channel_, deadline().seconds);
  sent_sums_.clear();
}

void ProcessGroup::recv_from_peer(const Collective& call, bool with_data) {
  const PackedTerms offer = unpack(control_of_peer(call, Control::offer), size(), world_rank(call.peer));
  const std::string verdict = misfit({name(), ranks_}, call.peer, offer.terms, rank(), terms_of(call));
  if (verdict.empty() && with_data) take({call.peer, call.out.raw(), call.out.bytes()}, channel_, channel_);
  send_control(call.peer, Control::answer, std::as_bytes(std::span(verdict)));
  if (!verdict.empty()) disagree(verdict);
  met();
  with_data ? await_data(call, channel_) : links_.wait_sent({world_rank(call.peer)}, channel_, deadline().seconds);
}

}  // namespace witan
