#include "witan/comm/processes/bootstrap.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>

#include "witan/base/error.h"
#include "witan/comm/processes/pending_connections.h"
#include "witan/comm/processes/process_failure.h"
#include "witan/comm/processes/rank_table.h"

namespace witan {
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

// Of rank 0: waits until all have come, and answers.
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

// Of the others.
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
