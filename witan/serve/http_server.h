// HTTP/1.1 over TCP: receives whole requests within limits, hands them on, and sends answers, whole or as server-sent
// events. What the requests mean is the handler's affair.
//
// Boost.Beast does the protocol (RFC 9112) of each connection (http_session.h) behind the checks of http_framing.h. One
// thread moves all bytes and a few others run the handler, one of them for long bodies alone, so that a slow client or
// a long prompt delays nobody else.
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
  int64_t all_bodies_bytes = 64 << 20;  // of all requests that are received or wait for the handler
  // Beyond it the connection that has waited longest for a whole head is closed, else the one whose body has been
  // coming longest; where all have asked and wait for their answers, the new one is refused with 503.
  int64_t connections = 256;
  int64_t unsent_bytes = 4 << 20;  // of an answer that a client reads too slowly
  Seconds idle{60};                // before a request of a connection
  Seconds head{10};                // from a request's first byte to the end of its head
  Seconds receive{30};             // from there to its last byte
  Seconds answer{600};             // from there to the answer's last
  Seconds send{30};                // for a piece of an answer to be taken
};

struct HttpRequest {
  std::string method = {}, path = {};  // the path without its query
  std::string authorization = {}, content_type = {};
  std::string body = {};
  std::string query = {};   // what stands behind the path's "?"
  std::string host = {};    // the header, as the client sent it
  std::string origin = {};  // likewise; empty: there is none
  std::string accept_encoding = {};
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::string allow = {};                                         // with 405: the methods that there are
  std::vector<std::pair<std::string, std::string>> headers = {};  // others, by name
};

// Where a request's answer goes; of the answer to HEAD, only what stands before its body (RFC 9110, section 9.3.2).
// Every method may be called from any thread, and does nothing once the client is gone.
class Reply {
 public:
  virtual ~Reply() = default;
  // The whole answer; or else begin_events(), any number of event(), end_events().
  virtual void send(HttpResponse response) = 0;
  virtual void begin_events() = 0;
  virtual void event(const std::string& data) = 0;  // without a line break
  virtual void end_events() = 0;
  // Whether nobody waits for the answer any more: the client left, or the time for it is over.
  virtual bool gone() const = 0;
};

class HttpServer {
 public:
  // Called on a thread of the server's; it may return before the request is answered.
  using Handler = std::function<void(const HttpRequest& request, std::shared_ptr<Reply> reply)>;
  // What the server itself answers to a request that it cannot hand on: too large, malformed, too slow.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;
  // Called with a request's head before its body is received. An answer refuses the body, and the handler is not
  // called. It runs on the thread that moves all bytes, so that it must be short.
  using OnHead = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

  // Listens at `host` (a name or an address) and `port` (0: a free one). Throws UsageError if that cannot be.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler, ErrorBody error_body,
             OnHead on_head = {});
  // Closes all connections. There must be no Reply left with others.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // Requests that are being handled or answered now.
  int64_t busy() const;
  // What the bodies take that are being received or handled now.
  int64_t body_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether only this machine can reach a server that listens there: 127.0.0.0/8, ::1, or a name of only such.
// Throws UsageError for a name that is not known.
bool is_loopback(const std::string& host);

}  // namespace witan::serve
