// Ranks that have met and exchange words over their connections only.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/processes.h"
#include "witan/comm/processes/links.h"
#include "witan/comm/processes/pending_connections.h"

namespace witan::testing {

inline constexpr auto kCall = Links::Control::call;
inline constexpr uint64_t kChannel = 77;

inline void say(Links& links, int to, const std::string& words, double seconds = 10) {
  links.send_control(to, kChannel, kCall, std::as_bytes(std::span(words)), seconds);
}

inline std::string hear(Links& links, int from, double seconds = 10) {
  std::string words;
  links.wait(
      [&](Links::View& view) {
        if (!view.has_control(from, kChannel, kCall)) return false;
        const Links::Bytes bytes = view.next_control(from, kChannel, kCall);
        words.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return true;
      },
      [&](Links::View& view) { return view.left(from) ? cat("rank ", from, " has left") : ""; },
      [&](Links::View&) { return cat("rank ", from, " is late"); }, seconds);
  return words;
}

// Whether the rank is known to have left within this many seconds.
inline bool leaves(Links& links, int rank, double seconds = 10) {
  return links.wait_some([&](Links::View& view) { return view.left(rank); }, [](Links::View&) { return ""; }, seconds);
}

// Runs body() on this many connected ranks and returns the results.
inline std::vector<Ended> on_links(int ranks, const std::function<std::string(Links&)>& body, double silence = 20) {
  return in_processes(ranks, [&, port = free_port()](int rank) {
    Links links(meet_peers(launch_by_sockets(rank, ranks, port), 20), silence);
    return body(links);
  });
}

// Returns when all ranks have arrived.
inline void meet_at_first(Links& links) {
  if (links.rank() != 0) {
    say(links, 0, "here");
    hear(links, 0);
    return;
  }
  for (int rank = 1; rank < links.size(); ++rank) hear(links, rank);
  for (int rank = 1; rank < links.size(); ++rank) say(links, rank, "all are here");
}

// Sends a frame by hand.
inline void send_frame(const Socket& to, FrameHeader header, std::span<const std::byte> payload = {}) {
  header.bytes = payload.size();
  send_all(to, std::as_bytes(std::span(&header, 1)), deadline_in(1));
  send_all(to, payload, deadline_in(1));
}

// Opens a connection to a rank by hand.
inline std::optional<Socket> introduced_to(const Met& met, int rank) {
  const Endpoint& at = met.peers[static_cast<size_t>(rank)].at;
  std::string why;
  auto socket = connect_to(at, deadline_in(5), why);
  if (!socket) return std::nullopt;
  auto peer = introduce(std::move(*socket), at, met.self, rank, deadline_in(5), why);
  return peer ? std::optional(std::move(peer->socket)) : std::nullopt;
}

// Returns when the other end has closed the connection.
inline void drain(const Socket& socket) {
  std::array<std::byte, 1> byte;
  while (recv_all(socket, byte, deadline_in(20)) == Transfer::done) {
  }
}

}  // namespace witan::testing
