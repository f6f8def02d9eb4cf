#include "witan/comm/processes/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "witan/base/error.h"

namespace witan {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Resolves a name; nothing, with the reason in `why`, if it is unknown.
AddressList resolve(const std::string& name, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) why = cat("cannot find the host ", name, ": ", ::gai_strerror(error));
  return {error == 0 ? found : nullptr, &::freeaddrinfo};
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Endpoint endpoint_of(const sockaddr_storage& storage, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int error = ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof host, port,
                                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  require<CommError>(error == 0, "a connection without an address: ", ::gai_strerror(error));
  constexpr std::string_view kMapped = "::ffff:";
  std::string address = host;
  if (address.starts_with(kMapped) && address.find('.') != std::string::npos) address.erase(0, kMapped.size());
  return {address, std::stoi(port)};
}

bool wait_for(const Socket& socket, int16_t events, double seconds) {
  pollfd waiting{socket.fd(), events, 0};
  const int ready = ::poll(&waiting, 1, std::max(static_cast<int>(seconds * 1e3), 0));
  return ready > 0;
}

double seconds_until(Deadline deadline) {
  return -seconds_since(deadline);
}

void set(const Socket& socket, int level, int option, int value) {
  ::setsockopt(socket.fd(), level, option, &value, sizeof value);
}

// A connection to a free port may be given that very port and connect to itself.
bool is_its_own_peer(const Socket& socket) {
  sockaddr_storage here{}, there{};
  socklen_t length = sizeof here;
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &length);
  length = sizeof there;
  ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &length);
  return std::memcmp(&here, &there, sizeof here) == 0;
}

// Returns no socket, with the reason in `error`, on failure.
Socket try_listen(const sockaddr* address, socklen_t length, int& error) {
  constexpr int kBacklog = 4096;
  Socket socket(::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.open()) {
    set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(socket.fd(), address, length) == 0 && ::listen(socket.fd(), kBacklog) == 0) return socket;
  }
  error = errno;
  return {};
}

// Listens on all addresses of this machine: an IPv6 socket also accepts IPv4. Without IPv6, IPv4 alone.
Socket try_listen_everywhere(int port, int& error) {
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  v6.sin6_addr = in6addr_any;
  Socket socket = try_listen(reinterpret_cast<const sockaddr*>(&v6), sizeof v6, error);
  if (socket.open()) return socket;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  return try_listen(reinterpret_cast<const sockaddr*>(&v4), sizeof v4, error);
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Endpoint local_end(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&storage), &length);
  return endpoint_of(storage, length);
}

Endpoint remote_end(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  require<CommError>(::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&storage), &length) == 0,
                     "a connection ended: ", std::strerror(errno));
  return endpoint_of(storage, length);
}

bool is_loopback(const std::string& address) {
  std::string why;
  const AddressList found = resolve(address, 0, why);
  if (!found) return false;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next)
    if (!is_loopback(at->ai_addr)) return false;
  return true;
}

Socket listen_at(const Endpoint& at) {
  int error = 0;
  std::string why;
  Socket socket;
  if (at.address.empty()) {
    socket = try_listen_everywhere(at.port, error);
  } else {
    const AddressList found = resolve(at.address, at.port, why);
    for (const addrinfo* one = found.get(); one != nullptr && !socket.open(); one = one->ai_next)
      socket = try_listen(one->ai_addr, one->ai_addrlen, error);
  }
  require<ConfigError>(socket.open(), "cannot listen at port ", at.port, ": ",
                       why.empty() ? std::strerror(error) : why.c_str(),
                       error == EADDRINUSE ? "; another program uses it: choose another with MASTER_PORT" : "");
  return socket;
}

std::optional<Socket> accept_from(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.open()) return std::nullopt;
  return socket;
}

bool lacks_descriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::optional<Socket> connect_to(const Endpoint& to, Deadline deadline, std::string& why) {
  const AddressList found = resolve(to.address, to.port, why);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.open()) continue;
    int error = ::connect(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!wait_writable(socket, seconds_until(deadline)))
        error = ETIMEDOUT;
      else
        ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0 && is_its_own_peer(socket)) error = ECONNREFUSED;
    if (error == 0) return socket;
    why = cat("cannot connect to ", to.address, ":", to.port, ": ", std::strerror(error));
  }
  return std::nullopt;
}

void keep_alive(const Socket& socket) {
  constexpr int kIdle = 1, kInterval = 1, kProbes = 3, kMostMilliseconds = 4000;
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kMostMilliseconds);
}

void wait_for_reader(const Socket& socket) {
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
}

Transfer send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const double left = seconds_until(deadline);
      if (left <= 0) return Transfer::late;
      wait_writable(socket, left);
    } else if (errno != EINTR) {
      return Transfer::closed;
    }
  }
  return Transfer::done;
}

Transfer recv_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline, const Socket* lifeline) {
  constexpr double kRefreshSeconds = 0.2;  // so often at the lifeline
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Transfer::closed;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const double left = seconds_until(deadline);
      if (left <= 0 || (lifeline != nullptr && hung_up(*lifeline))) return Transfer::late;
      wait_readable(socket, lifeline == nullptr ? left : std::min(left, kRefreshSeconds));
    } else if (errno != EINTR) {
      return Transfer::closed;
    }
  }
  return Transfer::done;
}

bool hung_up(const Socket& socket) {
  pollfd connection{socket.fd(), POLLRDHUP, 0};
  return ::poll(&connection, 1, 0) > 0;
}
bool wait_readable(const Socket& socket, double seconds) {
  return wait_for(socket, POLLIN, seconds);
}
bool wait_writable(const Socket& socket, double seconds) {
  return wait_for(socket, POLLOUT, seconds);
}

}  // namespace witan
