#include "witan/comm/processes/bootstrap.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/processes/pending_connections.h"
#include "witan/comm/processes/process_failure.h"

namespace witan {
namespace {

enum class TableKind : uint32_t { places, trouble };

constexpr size_t kMostNameBytes = 255, kMostTroubleBytes = 4096;
constexpr size_t kRankBytes = sizeof(uint32_t) + sizeof(uint16_t);

template <class Number>
void put(std::vector<std::byte>& out, Number number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_name(std::vector<std::byte>& out, std::string_view name) {
  name = name.substr(0, kMostNameBytes);
  put(out, static_cast<uint8_t>(name.size()));
  put_text(out, name);
}

std::vector<std::byte> packed_places(const std::vector<RankPlace>& places) {
  std::map<std::pair<std::string, std::string>, uint32_t> hosts;
  std::vector<std::byte> names, ranks;
  for (const RankPlace& place : places) {
    const auto [host, is_new] = hosts.insert({{place.host, place.address}, static_cast<uint32_t>(hosts.size())});
    if (is_new) {
      put_name(names, place.host);
      put_name(names, place.address);
    }
    put(ranks, host->second);
    put(ranks, static_cast<uint16_t>(place.port));
  }
  std::vector<std::byte> out;
  put(out, static_cast<uint32_t>(hosts.size()));
  out.insert(out.end(), names.begin(), names.end());
  out.insert(out.end(), ranks.begin(), ranks.end());
  return out;
}

[[noreturn]] void refuse_table() {
  throw CommError("rank 0 sent a malformed table of the ranks' addresses");
}

class Reading {
 public:
  explicit Reading(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class Number>
  Number number() {
    Number number;
    std::memcpy(&number, next(sizeof number).data(), sizeof number);
    return number;
  }
  std::string name() {
    const auto bytes = next(number<uint8_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> next(size_t bytes) {
    if (bytes > left_.size()) refuse_table();
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> left_;
};

}  // namespace

std::vector<std::byte> pack_table(const RankTable& table) {
  std::vector<std::byte> body, out;
  if (table.trouble.empty())
    body = packed_places(table.places);
  else
    put_text(body, std::string_view(table.trouble).substr(0, kMostTroubleBytes));
  put(out, table.trouble.empty() ? TableKind::places : TableKind::trouble);
  put(out, static_cast<uint32_t>(body.size()));
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void RankTableReader::advance(size_t bytes) {
  got_ += bytes;
  if (got_ < bytes_.size()) return;
  if (got_ == kHeadBytes) return read_head();
  const auto body = std::span(bytes_).subspan(kHeadBytes);
  if (Reading(bytes_).number<TableKind>() == TableKind::places) return read_places();
  table_.trouble.assign(reinterpret_cast<const char*>(body.data()), body.size());
}

void RankTableReader::read_head() {
  Reading head(bytes_);
  const auto kind = head.number<TableKind>();
  const auto bytes = head.number<uint32_t>();
  const size_t most = kind == TableKind::places
                          ? sizeof(uint32_t) + static_cast<size_t>(size_) * (2 + 2 * kMostNameBytes + kRankBytes)
                          : kMostTroubleBytes;
  if (kind > TableKind::trouble || bytes == 0 || bytes > most) refuse_table();
  bytes_.resize(kHeadBytes + bytes);
}

void RankTableReader::read_places() {
  Reading body(std::span<const std::byte>(bytes_).subspan(kHeadBytes));
  const auto count = body.number<uint32_t>();
  if (count > static_cast<uint32_t>(size_)) refuse_table();
  std::vector<RankPlace> hosts;
  for (uint32_t i = 0; i < count; ++i) {
    std::string host = body.name(), address = body.name();
    hosts.push_back({std::move(host), std::move(address), 0});
  }
  for (int rank = 0; rank < size_; ++rank) {
    const auto host = body.number<uint32_t>();
    if (host >= count) refuse_table();
    table_.places.push_back(hosts[host]);
    table_.places.back().port = body.number<uint16_t>();
  }
  if (!body.at_end()) refuse_table();
}

namespace {

constexpr double kLongerSeconds = 4;  // others wait longer for rank 0, which gives up first and says who is missing

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// For the connections of so many ranks of this process: rank 0's to all others, which are there from the beginning, and
// those that any of them may have with all others, if the system lets them be so many.
void allow_descriptors(const Member& self, int beside) {
  constexpr rlim_t kOthers = 256;
  const rlim_t size = static_cast<rlim_t>(self.size), strangers = kMostStrangers;
  const rlim_t needed = (self.rank == 0 ? size * 2 : 0) + strangers + kOthers;
  const rlim_t most = std::max(needed, static_cast<rlim_t>(beside) * (size * 2 + strangers) + kOthers);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= most) return;
  limit.rlim_cur = std::min(most, limit.rlim_max);
  require<ConfigError>(::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= needed, self.size, " ranks need ",
                       needed, " open files in the process of rank ", self.rank, ", but the limit is ", limit.rlim_max,
                       ": raise it (ulimit -Hn)");
}

std::set<int> ranks_from(int first, int size) {
  std::set<int> ranks;
  for (int rank = first; rank < size; ++rank) ranks.insert(rank);
  return ranks;
}

// Connects to rank 0, which may not be there yet.
ConnectedPeer find_first(const Endpoint& at, const Member& self, double seconds) {
  constexpr double kTrySeconds = 2;
  const Deadline deadline = deadline_in(seconds);
  std::string why = "it did not answer";
  auto pause = std::chrono::milliseconds(5);
  while (std::chrono::steady_clock::now() < deadline) {
    auto socket = connect_to(at, std::min(deadline, deadline_in(kTrySeconds)), why);
    if (socket)
      if (auto peer = introduce(std::move(*socket), at, self, 0, deadline, why)) return std::move(*peer);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
  throw CommError(cat("rank ", self.rank, " on ", self.host, " could not connect to rank 0 at ", at.address, ":",
                      at.port, " within ", seconds, " s: ", why));
}

// Rank 0's table. Ranks of its own host may have come over the loopback, where others cannot find them: they are where
// rank 0 is.
RankTable make_table(const Member& self, const std::vector<ConnectedPeer>& peers) {
  RankTable table{std::vector<RankPlace>(static_cast<size_t>(self.size)), ""};
  table.places[0].host = self.host;
  std::string own;
  for (const ConnectedPeer& peer : peers)
    if (!is_loopback(remote_end(peer.socket).address)) own = local_end(peer.socket).address;
  for (const ConnectedPeer& peer : peers) {
    std::string address = remote_end(peer.socket).address;
    if (is_loopback(address) && !own.empty()) address = own;
    table.places[static_cast<size_t>(peer.rank)] = {peer.host, address, peer.port};
  }
  return table;
}

void tell(const std::vector<ConnectedPeer>& peers, const RankTable& table, Deadline deadline) {
  const std::vector<std::byte> bytes = pack_table(table);
  for (const ConnectedPeer& peer : peers)
    send_all(peer.socket, bytes, deadline);  // who is gone by now is found out later
}

RankTable hear(const Socket& from, int size, Deadline deadline, double seconds) {
  RankTableReader reader(size);
  for (auto room = reader.room(); !room.empty(); room = reader.room()) {
    const Transfer transfer = recv_all(from, room, deadline);
    require<CommError>(transfer != Transfer::closed, "rank 0 ended before all ranks had connected");
    require<CommError>(transfer != Transfer::late, "rank 0 did not send the addresses of the other ranks within ",
                       seconds, " s");
    reader.advance(room.size());
  }
  require<CommError>(reader.table().trouble.empty(), reader.table().trouble);
  return reader.table();
}

// Rank 0 waits until all have come, and answers.
RankTable receive_all(const Socket& listener, const Member& self, double seconds, std::vector<ConnectedPeer>& peers) {
  const Deadline deadline = deadline_in(seconds);
  try {
    accept_peers(listener, self, ranks_from(1, self.size), deadline, peers);
  } catch (const CommError& error) {
    const bool lost = dynamic_cast<const LostError*>(&error) != nullptr;
    const std::string trouble = lost ? error.what() : cat(error.what(), " (waited ", seconds, " s)");
    tell(peers, {{}, trouble}, deadline_in(1));
    throw CommError(trouble);
  }
  RankTable table = make_table(self, peers);
  tell(peers, table, deadline);
  return table;
}

// The other ranks come to rank 0 and receive its answer.
RankTable come_to_first(const Endpoint& at, const Member& self, double seconds, std::vector<ConnectedPeer>& peers) {
  const double patience = seconds + kLongerSeconds;
  const Deadline deadline = deadline_in(patience);
  peers.push_back(find_first(at, self, seconds));
  keep_alive(peers[0].socket);
  return hear(peers[0].socket, self.size, deadline, patience);
}

}  // namespace

Met meet_peers(const Launch& launch, double seconds, int beside) {
  Met met{{launch.rank, launch.size, launch.secret, host_name(), 0},
          std::vector<Peer>(static_cast<size_t>(launch.size)),
          {}};
  const bool first = launch.rank == 0, open_to_all = !launch.secret.empty();
  allow_descriptors(met.self, beside);
  met.listener = listen_at({open_to_all ? "" : launch.master.address, first ? launch.master.port : 0});
  if (!first) met.self.port = local_end(met.listener).port;
  std::vector<ConnectedPeer> peers;
  RankTable table = first ? receive_all(met.listener, met.self, seconds, peers)
                          : come_to_first(launch.master, met.self, seconds, peers);
  for (size_t rank = 0; rank < met.peers.size(); ++rank) {
    RankPlace& place = table.places[rank];
    met.peers[rank].host = std::move(place.host);
    met.peers[rank].at = {open_to_all ? place.address : launch.master.address, place.port};
  }
  for (ConnectedPeer& peer : peers) {
    keep_alive(peer.socket);
    met.peers[static_cast<size_t>(peer.rank)].socket = std::move(peer.socket);
  }
  if (first) met.listener.close();
  return met;
}

}  // namespace witan
