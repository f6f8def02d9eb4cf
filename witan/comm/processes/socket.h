// TCP connections between the processes of a job. Sockets do not block; every wait has a deadline.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "witan/comm/deadline.h"

namespace witan {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// A numeric address and a port.
struct Endpoint {
  std::string address;
  int port = 0;
};
Endpoint local_end(const Socket& socket);
Endpoint remote_end(const Socket& socket);

// Whether the name refers to this machine only: 127.x, ::1, and their names.
bool is_loopback(const std::string& address);

// Hears connections to this address of this machine ("": to all of them) and port (0: one that is free). Throws
// ConfigError.
Socket listen_at(const Endpoint& at);
// The next connection that waits, if there is one.
std::optional<Socket> accept_from(const Socket& listener);
// Whether this error of accept() or socket() means that the process or the machine is out of descriptors.
bool lacks_descriptors(int error);
// Returns nothing, with the reason in `why`, if there is no answer by the deadline.
std::optional<Socket> connect_to(const Endpoint& to, Deadline deadline, std::string& why);

// Small messages are sent at once, and the system finds out within 4 s that the other host is gone.
void keep_alive(const Socket& socket);
// Keeps the connection although the other process reads nothing for long, as when a debugger stops it.
void wait_for_reader(const Socket& socket);

enum class Transfer : uint8_t { done, closed, late };
// All of the bytes, or why not.
Transfer send_all(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
// `lifeline`: another connection, whose end ends the wait: late.
Transfer recv_all(const Socket& socket, std::span<std::byte> bytes, Deadline deadline,
                  const Socket* lifeline = nullptr);

// Waits until the socket can be read (or written) or `seconds` are over; false then.
bool wait_readable(const Socket& socket, double seconds);
bool wait_writable(const Socket& socket, double seconds);
// Whether the other side has closed the connection, even if data is still unread.
bool hung_up(const Socket& socket);

}  // namespace witan
