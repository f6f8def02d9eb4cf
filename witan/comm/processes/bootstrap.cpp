#include "witan/comm/processes/bootstrap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <thread>

#include "witan/base/error.h"
#include "witan/comm/processes/guests.h"
#include "witan/comm/processes/rank_table.h"

namespace witan {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// A connection to every rank takes a descriptor each, and one to everybody who is heard before that is known.
void allow_descriptors(int size, int beside) {
  constexpr rlim_t kOthers = 256;
  const rlim_t needed = static_cast<rlim_t>(beside) * (static_cast<rlim_t>(size) * 2 + kMostStrangers) + kOthers;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  require<ConfigError>(limit.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &limit) == 0, size, " ranks need ",
                       needed, " open files in each process, but the limit is ", limit.rlim_max,
                       ": raise it (ulimit -Hn)");
}

std::set<int> ranks_from(int first, int size) {
  std::set<int> ranks;
  for (int rank = first; rank < size; ++rank) ranks.insert(rank);
  return ranks;
}

// Connects to a rank that may not be there yet.
Guest find(const Endpoint& at, const Member& self, int rank, Deadline deadline, double seconds,
           const Socket* lifeline = nullptr) {
  constexpr double kTrySeconds = 2;
  std::string why = "it did not answer";
  auto pause = std::chrono::milliseconds(5);
  const auto who = [&] {
    return cat("rank ", self.rank, " on ", self.host, " could not connect to rank ", rank, " at ", at.address, ":",
               at.port);
  };
  while (std::chrono::steady_clock::now() < deadline) {
    require<CommError>(lifeline == nullptr || !hung_up(*lifeline), who(), ": ", why, "; rank 0 ended meanwhile");
    auto socket = connect_to(at, std::min(deadline, deadline_in(kTrySeconds)), why);
    if (socket)
      if (auto guest = introduce(std::move(*socket), at, self, rank, deadline, why, lifeline)) return std::move(*guest);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
  throw CommError(cat(who(), " within ", seconds, " s: ", why));
}

// Rank 0's table. Ranks of its own host may have come over the loopback, where others cannot find them: they are where
// rank 0 is.
RankTable make_table(const Member& self, const std::vector<Guest>& guests) {
  RankTable table{std::vector<RankPlace>(static_cast<size_t>(self.size)), ""};
  table.places[0].host = self.host;
  std::string own;
  for (const Guest& guest : guests)
    if (!is_loopback(remote_end(guest.socket).address)) own = local_end(guest.socket).address;
  for (const Guest& guest : guests) {
    std::string address = remote_end(guest.socket).address;
    if (is_loopback(address) && !own.empty()) address = own;
    table.places[static_cast<size_t>(guest.rank)] = {guest.host, address, guest.port};
  }
  return table;
}

void tell(const std::vector<Guest>& guests, const RankTable& table, Deadline deadline) {
  const std::vector<std::byte> bytes = pack_table(table);
  for (const Guest& guest : guests) send_all(guest.socket, bytes, deadline);  // who is gone by now is found out later
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

std::vector<Peer> peers_of(std::vector<Guest> guests, int size) {
  std::vector<Peer> peers(static_cast<size_t>(size));
  for (Guest& guest : guests) {
    keep_alive(guest.socket);
    peers[static_cast<size_t>(guest.rank)] = {std::move(guest.host), std::move(guest.socket)};
  }
  return peers;
}

std::vector<Peer> meet_as_first(const Launch& launch, const Member& self, double seconds) {
  const Deadline deadline = deadline_in(seconds);
  const Endpoint all = {"", launch.master.port};
  const Socket listener = listen_at(launch.secret.empty() ? launch.master : all);
  std::vector<Guest> guests;
  try {
    receive_guests(listener, self, ranks_from(1, self.size), deadline, guests);
  } catch (const CommError& error) {
    const std::string trouble = cat(error.what(), " (waited ", seconds, " s)");
    tell(guests, {{}, trouble}, deadline_in(1));
    throw CommError(trouble);
  }
  tell(guests, make_table(self, guests), deadline);
  std::vector<Peer> peers = peers_of(std::move(guests), self.size);
  peers[0].host = self.host;
  return peers;
}

std::vector<Peer> meet_as_other(const Launch& launch, Member self, double seconds) {
  // Rank 0 gives up first, and says who is missing.
  const double patience = seconds + 5;
  const Deadline deadline = deadline_in(patience);
  std::string why;
  Endpoint own = {"", 0};
  if (launch.secret.empty()) own.address = launch.master.address;
  const Socket listener = listen_at(own);
  self.port = local_end(listener).port;

  std::vector<Guest> guests;
  guests.reserve(static_cast<size_t>(self.size));  // they stay where they are
  guests.push_back(find(launch.master, self, 0, deadline_in(seconds), seconds));
  keep_alive(guests[0].socket);
  const RankTable table = hear(guests[0].socket, self.size, deadline, patience);
  const Socket* const first = &guests[0].socket;  // it knows who is lost from now on
  for (int rank = 1; rank < self.rank; ++rank) {
    const RankPlace& place = table.places[static_cast<size_t>(rank)];
    const std::string address = own.address.empty() ? place.address : own.address;
    guests.push_back(find({address, place.port}, self, rank, deadline, patience, first));
  }
  receive_guests(listener, self, ranks_from(self.rank + 1, self.size), deadline, guests, first);
  std::vector<Peer> peers = peers_of(std::move(guests), self.size);
  for (int rank = 0; rank < self.size; ++rank)
    peers[static_cast<size_t>(rank)].host = table.places[static_cast<size_t>(rank)].host;
  return peers;
}

}  // namespace

std::vector<Peer> meet_peers(const Launch& launch, double seconds, int beside) {
  allow_descriptors(launch.size, beside);
  const Member self{launch.rank, launch.size, launch.secret, host_name()};
  return launch.rank == 0 ? meet_as_first(launch, self, seconds) : meet_as_other(launch, self, seconds);
}

}  // namespace witan
