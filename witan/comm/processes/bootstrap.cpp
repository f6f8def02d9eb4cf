#include "witan/comm/processes/bootstrap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>
#include <span>
#include <thread>

#include "witan/base/error.h"
#include "witan/comm/processes/handshake.h"

namespace witan {
namespace {

// What rank 0 tells the others: these, one for each rank, or why there are none.
struct Row {
  std::array<char, kHostBytes> host{};
  std::array<char, kHostBytes> address{};
  int32_t port = 0;
  uint32_t unused = 0;
};
struct TableHead {
  uint32_t complete = 0;
  uint32_t unused = 0;
  std::array<char, 1024> trouble{};
};

template <size_t N>
std::array<char, N> field(const std::string& text) {
  std::array<char, N> out{};
  std::copy_n(text.begin(), std::min(text.size(), N - 1), out.begin());
  return out;
}
template <size_t N>
std::string text_of(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// A connection to every rank takes a descriptor each.
void allow_descriptors(int size, int beside) {
  constexpr rlim_t kOthers = 256;
  const rlim_t needed = static_cast<rlim_t>(size) * static_cast<rlim_t>(beside) * 2 + kOthers;
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
Guest find(const Endpoint& at, const Member& self, int rank, Deadline deadline, double seconds) {
  constexpr double kTrySeconds = 2;
  std::string why = "it did not answer";
  auto pause = std::chrono::milliseconds(5);
  const auto who = [&] {
    return cat("rank ", self.rank, " on ", self.host, " could not connect to rank ", rank, " at ", at.address, ":",
               at.port);
  };
  while (std::chrono::steady_clock::now() < deadline) {
    require<CommError>(self.first == nullptr || !hung_up(*self.first), who(), ": ", why, "; rank 0 ended meanwhile");
    auto socket = connect_to(at, std::min(deadline, deadline_in(kTrySeconds)), why);
    if (socket)
      if (auto guest = introduce(std::move(*socket), at, self, rank, deadline, why)) return std::move(*guest);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(500));
  }
  throw CommError(cat(who(), " within ", seconds, " s: ", why));
}

// Rank 0's table. Ranks of its own host may have come over the loopback, where others cannot find them: they are where
// rank 0 is.
std::vector<Row> make_table(const Member& self, const std::vector<Guest>& guests) {
  std::vector<Row> table(static_cast<size_t>(self.size));
  table[0].host = field<kHostBytes>(self.host);
  std::string own;
  for (const Guest& guest : guests)
    if (!is_loopback(remote_end(guest.socket).address)) own = local_end(guest.socket).address;
  for (const Guest& guest : guests) {
    std::string address = remote_end(guest.socket).address;
    if (is_loopback(address) && !own.empty()) address = own;
    table[static_cast<size_t>(guest.rank)] = {field<kHostBytes>(guest.host), field<kHostBytes>(address), guest.port, 0};
  }
  return table;
}

void tell(const std::vector<Guest>& guests, const TableHead& head, std::span<const Row> table, Deadline deadline) {
  for (const Guest& guest : guests) {
    send_all(guest.socket, std::as_bytes(std::span(&head, 1)), deadline);
    send_all(guest.socket, std::as_bytes(table), deadline);  // whoever is gone by now is found out later
  }
}

std::vector<Row> hear(const Socket& from, int size, Deadline deadline, double seconds) {
  TableHead head;
  std::vector<Row> table(static_cast<size_t>(size));
  const auto get = [&](std::span<std::byte> bytes) {
    const Transfer transfer = recv_all(from, bytes, deadline);
    require<CommError>(transfer != Transfer::closed, "rank 0 ended before all ranks had connected");
    require<CommError>(transfer != Transfer::late, "rank 0 did not send the addresses of the other ranks within ",
                       seconds, " s");
  };
  get(std::as_writable_bytes(std::span(&head, 1)));
  require<CommError>(head.complete == 1, text_of(head.trouble));
  get(std::as_writable_bytes(std::span(table)));
  return table;
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
    tell(guests, {0, 0, field<1024>(trouble)}, {}, deadline_in(1));
    throw CommError(trouble);
  }
  tell(guests, {1, 0, {}}, make_table(self, guests), deadline);
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
  const std::vector<Row> table = hear(guests[0].socket, self.size, deadline, patience);
  self.first = &guests[0].socket;
  for (int rank = 1; rank < self.rank; ++rank) {
    const Row& row = table[static_cast<size_t>(rank)];
    const std::string address = own.address.empty() ? text_of(row.address) : own.address;
    guests.push_back(find({address, row.port}, self, rank, deadline, patience));
  }
  receive_guests(listener, self, ranks_from(self.rank + 1, self.size), deadline, guests);
  std::vector<Peer> peers = peers_of(std::move(guests), self.size);
  for (int rank = 0; rank < self.size; ++rank)
    peers[static_cast<size_t>(rank)].host = text_of(table[static_cast<size_t>(rank)].host);
  return peers;
}

}  // namespace

std::vector<Peer> meet_peers(const Launch& launch, double seconds, int beside) {
  allow_descriptors(launch.size, beside);
  const Member self{launch.rank, launch.size, launch.secret, host_name()};
  return launch.rank == 0 ? meet_as_first(launch, self, seconds) : meet_as_other(launch, self, seconds);
}

}  // namespace witan
