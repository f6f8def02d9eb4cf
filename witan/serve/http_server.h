// HTTP/1.1 over TCP: receives complete requests within limits, passes them to a handler, and sends answers, whole or as
// server-sent events.
//
// Boost.Beast implements the protocol (RFC 9112) of each connection (http_session.h) after the checks of
// http_framing.h. One I/O thread serves all sockets and a few others run the handler, one of them only for long bodies,
// so that a slow client or a long prompt delays no other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace witan::serve {

struct HttpLimits {
  using Seconds = std::chrono::duration<double>;
  int64_t header_bytes = 16 << 10;
  int64_t body_bytes = 8 << 20;
  int64_t all_bodies_bytes = 64 << 20;  // of all requests being received or waiting for the handler
  // At this limit a new connection replaces the one that has waited longest for a complete head, else the one that has
  // been receiving a body longest. If all others wait for answers, the new one is refused with 503.
  int64_t connections = 256;
  int64_t unsent_bytes = 4 << 20;  // of a streamed answer that the client reads too slowly
  Seconds idle{60};                // between requests of a connection
  Seconds head{10};                // from a request's first byte to the end of its head
  Seconds receive{30};             // from there to the request's last byte
  Seconds answer{600};             // from there to the answer's last byte
  Seconds send{30};                // for the client to accept a piece of an answer
};

struct HttpRequest {
  std::string method = {}, path = {};  // the path without its query
  std::string authorization = {}, content_type = {};
  std::string body = {};
  std::string query = {};   // after the path's "?"
  std::string host = {};    // the header as sent
  std::string origin = {};  // the header as sent; empty: absent
  std::string accept_encoding = {};
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::string allow = {};                                         // with 405: the allowed methods
  std::vector<std::pair<std::string, std::string>> headers = {};  // further headers by name
};

// Sends the answer to a request; for HEAD only its head (RFC 9110, section 9.3.2). Every method may be called from any
// thread and does nothing once the client is gone.
class Reply {
 public:
  virtual ~Reply() = default;
  // Sends a whole answer. Alternatively: begin_events(), any number of event(), end_events().
  virtual void send(HttpResponse response) = 0;
  virtual void begin_events() = 0;
  virtual void event(const std::string& data) = 0;  // without a line break
  virtual void end_events() = 0;
  // Whether the answer is no longer awaited: the client left, or the time limit has passed.
  virtual bool gone() const = 0;
};

class HttpServer {
 public:
  // Called on one of the server's threads; may return before the request is answered.
  using Handler = std::function<void(const HttpRequest& request, std::shared_ptr<Reply> reply)>;
  // The body of answers that the server itself gives to requests that are too large, malformed or too slow.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;
  // Called with a request's head before its body is received. A returned response refuses the body, and the handler is
  // not called. Runs on the I/O thread, so it must be fast.
  using OnHead = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

  // Listens at `host` (a name or an address) and `port` (0: any free port). Throws UsageError if that fails.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler, ErrorBody error_body,
             OnHead on_head = {});
  // Closes all connections. There may be no Reply left.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // The number of requests being handled or answered.
  int64_t busy() const;
  // The memory taken by bodies being received or handled.
  int64_t body_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether a server listening at `host` is reachable from this machine only: 127.0.0.0/8, ::1, or a name that resolves
// only to these. Throws UsageError for an unknown name.
bool is_loopback(const std::string& host);

}  // namespace witan::serve
