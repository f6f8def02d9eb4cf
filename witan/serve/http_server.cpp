#include "witan/serve/http_server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <thread>

#include "witan/base/error.h"
#include "witan/serve/http_session.h"

namespace witan::serve {
namespace {

constexpr int kHandlerThreads = 2;
constexpr size_t kLongBody = 256 << 10;  // parsing a longer body takes noticeable time

tcp::resolver::results_type resolve_host(net::io_context& io, const std::string& host, int port) {
  NetError error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  require<UsageError>(!error && !found.empty(), "--host ", host, ": no such host: ", error.message());
  return found;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const std::string& name, int port, const HttpLimits& limits, Handler handler, ErrorBody error_body,
       OnHead on_head)
      : host(limits), handlers(kHandlerThreads), long_handlers(1), acceptor(host.io), accept_again(host.io) {
    host.error_body = std::move(error_body);
    host.on_head = std::move(on_head);
    host.dispatch = [this, handler = std::move(handler)](HttpRequest request, BodyShare share,
                                                         std::shared_ptr<Reply> reply) {
      net::thread_pool& threads = request.body.size() < kLongBody ? handlers : long_handlers;
      net::post(threads,
                [this, &handler, share = std::move(share), request = std::move(request), reply = std::move(reply)] {
                  try {
                    handler(request, reply);
                  } catch (const std::exception& error) {
                    reply->send({500, host.error_body(500, error.what())});
                  }
                });
    };
    listen(name, port);
    accept();
    thread = std::thread([this] { host.io.run(); });
  }

  ~Impl() {
    host.io.stop();
    thread.join();
    handlers.join();
    long_handlers.join();
  }

  void listen(const std::string& name, int port) {
    const tcp::endpoint place = resolve_host(host.io, name, port).begin()->endpoint();
    NetError error;
    acceptor.open(place.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(place, error);
    if (!error) acceptor.listen(tcp::socket::max_listen_connections, error);
    require<UsageError>(!error, "cannot listen at ", name, ", port ", port, ": ", error.message(),
                        ": choose another with --port (0: a free one)");
  }

  void accept() {
    acceptor.async_accept([this](NetError error, tcp::socket socket) {
      if (error == net::error::operation_aborted) return;
      if (error) return on_accept_error();
      NetError ignored;
      socket.set_option(tcp::no_delay(true), ignored);  // events are small and must not be delayed
      while (host.open >= host.limits.connections && make_room()) {
      }
      const bool full = host.open >= host.limits.connections;
      const auto session = std::make_shared<HttpSession>(std::move(socket), host);
      if (full)
        session->refuse(503, cat("all ", host.limits.connections, " connections wait for answers: try again later"));
      else
        session->start();
      accept();
    });
  }

  // Closes a connection without a complete request; returns false if there is none.
  bool make_room() {
    if (host.dispensable.empty()) return false;
    host.dispensable.begin()->second->disconnect();
    return true;
  }

  // Without file descriptors left, accepting fails until something is closed.
  void on_accept_error() {
    if (make_room()) return accept();
    accept_again.expires_after(std::chrono::milliseconds(100));
    accept_again.async_wait([this](NetError error) {
      if (!error) accept();
    });
  }

  SessionHost host;  // before what uses its io_context
  net::thread_pool handlers, long_handlers;
  tcp::acceptor acceptor;
  net::steady_timer accept_again;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
                       ErrorBody error_body, OnHead on_head)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handler), std::move(error_body), std::move(on_head))) {
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

int64_t HttpServer::busy() const {
  return impl_->host.busy;
}

int64_t HttpServer::body_bytes() const {
  return impl_->host.bodies.used();
}

bool is_loopback(const std::string& host) {
  net::io_context io;
  const auto found = resolve_host(io, host, 0);
  return std::all_of(found.begin(), found.end(),
                     [](const auto& entry) { return entry.endpoint().address().is_loopback(); });
}

}  // namespace witan::serve
