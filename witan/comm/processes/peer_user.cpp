#include "witan/comm/processes/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "witan/base/error.h"

namespace witan {
namespace {

struct DiagRequest {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

// The end of a connection as requests name it. An IPv4 connection to a socket of IPv6 counts as one of IPv4.
void put_end(const sockaddr_storage& from, uint8_t& family, uint32_t* address, uint16_t& port) {
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  family = static_cast<uint8_t>(from.ss_family);
  port = from.ss_family == AF_INET ? v4.sin_port : v6.sin6_port;
  if (from.ss_family == AF_INET) {
    std::memcpy(address, &v4.sin_addr, sizeof v4.sin_addr);
  } else if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    family = AF_INET;
    std::memcpy(address, v6.sin6_addr.s6_addr + 12, 4);
  } else {
    std::memcpy(address, &v6.sin6_addr, sizeof v6.sin6_addr);
  }
}

// For the socket that is the other end of this one.
std::optional<DiagRequest> request_for_peer(const Socket& socket) {
  sockaddr_storage here{}, there{};
  socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0 ||
      ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0)
    return std::nullopt;
  DiagRequest request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~uint32_t{0};
  inet_diag_sockid& id = request.body.id;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  put_end(here, request.body.sdiag_family, id.idiag_dst, id.idiag_dport);
  put_end(there, request.body.sdiag_family, id.idiag_src, id.idiag_sport);
  return request;
}

}  // namespace

std::optional<uid_t> user_of_peer(const Socket& socket) {
  const auto request = request_for_peer(socket);
  const Socket kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  const auto require_room = [] {
    require<CommError>(!lacks_descriptors(errno), "cannot ask whose a connection is: ", std::strerror(errno));
  };
  if (!kernel.open()) require_room();
  if (!request || !kernel.open()) return std::nullopt;
  if (::send(kernel.fd(), &*request, sizeof *request, 0) != static_cast<ssize_t>(sizeof *request)) {
    require_room();
    return std::nullopt;
  }
  alignas(nlmsghdr) std::array<char, 4096> answer;
  const ssize_t got = ::recv(kernel.fd(), answer.data(), answer.size(), 0);  // the kernel answers before it returns
  if (got < 0) require_room();
  nlmsghdr head;
  inet_diag_msg body;
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof body))) return std::nullopt;
  std::memcpy(&head, answer.data(), sizeof head);
  if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  std::memcpy(&body, answer.data() + NLMSG_HDRLEN, sizeof body);
  return body.idiag_uid;
}

}  // namespace witan
