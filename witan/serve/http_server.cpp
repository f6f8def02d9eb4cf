#include "witan/serve/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "witan/base/error.h"

namespace witan::serve {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using net::ip::tcp;
using NetError = boost::system::error_code;

constexpr int kHandlerThreads = 2;
constexpr double kLingerSeconds = 2;  // for what a refused client is still sending

// What the sessions of a server share.
struct SessionHost {
  HttpLimits limits;
  HttpServer::ErrorBody error_body;
  std::function<void(HttpRequest request, std::shared_ptr<Reply> reply)> dispatch;  // to the handler's threads
  std::atomic<int64_t> sessions = 0, busy = 0;
  net::io_context io{1};  // last: its end is that of the sessions, which count
};

// One connection. Every method runs on the thread that moves bytes. A session lives as long as an operation of its is
// under way, or somebody may still answer its request.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(tcp::socket socket, SessionHost& host) : socket_(std::move(socket)), timer_(host.io), host_(host) {
    ++host_.sessions;
  }
  ~HttpSession() {
    --host_.sessions;
    set_answer(Answer::none);
  }
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void start() { wait_for_request(); }
  void refuse(int status, const std::string& message) { fail(status, message); }

  // These are of the request with this number: what comes too late for it is dropped.
  void send(uint64_t request, const HttpResponse& response);
  void begin_events(uint64_t request);
  void event(uint64_t request, const std::string& data);
  void end_events(uint64_t request);
  void abandoned(uint64_t request);  // nobody will answer it

 private:
  enum class Answer : uint8_t { none, waited_for, streaming, ending };
  using Late = void (HttpSession::*)();

  void wait_for_request();
  void receive_header();
  void receive_body();
  void on_receive_error(NetError error);
  void on_receive_late();
  void dispatch();
  void watch();
  void on_answer_late();
  void disconnect();
  void set_answer(Answer answer);
  bool is_current(uint64_t request, Answer answer) const { return request == request_ && answer == answer_; }
  std::string head_of(const HttpResponse& response, bool chunked) const;
  std::string whole(const HttpResponse& response) const {
    return head_of(response, false) + (head_only_ ? "" : response.body);
  }
  void write(const std::string& bytes);
  void flush();
  void end_request();
  void fail(int status, const std::string& message);
  void close_slowly();
  void discard();
  // Calls `late` unless the alarm is set again, or off, before.
  void arm(HttpLimits::Seconds time, Late late);
  void disarm() { ++alarm_, timer_.cancel(); }

  tcp::socket socket_;
  net::steady_timer timer_;
  SessionHost& host_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  uint64_t request_ = 0, alarm_ = 0;
  std::chrono::steady_clock::time_point answer_by_;
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);  // of the present request
  Answer answer_ = Answer::none;
  unsigned version_ = 11;
  bool keep_alive_ = false, head_only_ = false, timed_out_ = false, sending_ = false;
  std::string unsent_, sent_;  // what waits, and what is being sent
};

// One request's answer, of whichever thread: what is said is said again on the session's.
class SessionReply : public Reply {
 public:
  SessionReply(std::shared_ptr<HttpSession> session, SessionHost& host, uint64_t request,
               std::shared_ptr<const std::atomic<bool>> gone)
      : session_(std::move(session)), host_(host), request_(request), gone_(std::move(gone)) {}
  ~SessionReply() override {
    tell([](HttpSession& session, uint64_t request) { session.abandoned(request); });
  }
  SessionReply(const SessionReply&) = delete;
  SessionReply& operator=(const SessionReply&) = delete;

  void send(HttpResponse response) override {
    tell([response = std::move(response)](HttpSession& session, uint64_t request) { session.send(request, response); });
  }
  void begin_events() override {
    tell([](HttpSession& session, uint64_t request) { session.begin_events(request); });
  }
  void event(const std::string& data) override {
    tell([data](HttpSession& session, uint64_t request) { session.event(request, data); });
  }
  void end_events() override {
    tell([](HttpSession& session, uint64_t request) { session.end_events(request); });
  }
  bool gone() const override { return *gone_; }

 private:
  template <class What>
  void tell(What what) const {
    net::post(host_.io, [session = session_, request = request_, what = std::move(what)] { what(*session, request); });
  }

  std::shared_ptr<HttpSession> session_;
  SessionHost& host_;
  uint64_t request_;
  std::shared_ptr<const std::atomic<bool>> gone_;
};

void HttpSession::arm(HttpLimits::Seconds time, Late late) {
  const uint64_t alarm = ++alarm_;
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(time));
  timer_.async_wait([self = shared_from_this(), alarm, late](NetError error) {
    if (!error && alarm == self->alarm_) ((*self).*late)();
  });
}

void HttpSession::wait_for_request() {
  timed_out_ = head_only_ = false;
  if (buffer_.size() > 0) return receive_header();  // the next request came with the last
  arm(host_.limits.idle, &HttpSession::disconnect);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](NetError error) {
    if (error) return self->disconnect();
    self->receive_header();
  });
}

void HttpSession::receive_header() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(host_.limits.header_bytes));
  parser_->body_limit(static_cast<uint64_t>(host_.limits.body_bytes));
  arm(host_.limits.receive, &HttpSession::on_receive_late);
  http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](NetError error, size_t) {
    if (error) return self->on_receive_error(error);
    if (boost::beast::iequals(self->parser_->get()[http::field::expect], "100-continue"))
      self->write("HTTP/1.1 100 Continue\r\n\r\n");
    self->receive_body();
  });
}

void HttpSession::receive_body() {
  http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](NetError error, size_t) {
    if (error) return self->on_receive_error(error);
    self->dispatch();
  });
}

// Ends the operation that is under way, which then answers.
void HttpSession::on_receive_late() {
  timed_out_ = true;
  NetError ignored;
  socket_.cancel(ignored);
}

void HttpSession::on_receive_error(NetError error) {
  const HttpLimits& limits = host_.limits;
  if (timed_out_) return fail(408, cat("the request was not received within ", limits.receive.count(), " seconds"));
  if (error == http::error::header_limit)
    return fail(431, cat("the request's header is longer than ", limits.header_bytes, " bytes"));
  if (error == http::error::body_limit)
    return fail(413, cat("the request's body is longer than ", limits.body_bytes, " bytes"));
  const bool left = error == http::error::end_of_stream || error == http::error::partial_message;
  if (left || error.category() != http::make_error_code(http::error::bad_method).category()) return disconnect();
  fail(400, cat("this is no HTTP request: ", error.message()));
}

void HttpSession::set_answer(Answer answer) {
  if (answer_ == Answer::none && answer != Answer::none) ++host_.busy;
  if (answer_ != Answer::none && answer == Answer::none) --host_.busy;
  answer_ = answer;
}

void HttpSession::dispatch() {
  auto message = parser_->release();
  const std::string_view target(message.target().data(), message.target().size());
  const auto text = [&](http::field field) { return std::string(message[field]); };
  const size_t path_end = std::min(target.find('?'), target.size());
  HttpRequest request{.method = std::string(message.method_string()),
                      .path = std::string(target.substr(0, path_end)),
                      .authorization = text(http::field::authorization),
                      .content_type = text(http::field::content_type),
                      .body = std::move(message.body()),
                      .query = std::string(target.substr(std::min(path_end + 1, target.size()))),
                      .host = text(http::field::host),
                      .origin = text(http::field::origin),
                      .accept_encoding = text(http::field::accept_encoding)};
  head_only_ = message.method() == http::verb::head;
  keep_alive_ = message.keep_alive();
  version_ = message.version();
  gone_ = std::make_shared<std::atomic<bool>>(false);
  ++request_;
  set_answer(Answer::waited_for);
  arm(host_.limits.answer, &HttpSession::on_answer_late);
  answer_by_ = timer_.expiry();
  watch();
  host_.dispatch(std::move(request), std::make_shared<SessionReply>(shared_from_this(), host_, request_, gone_));
}

// A client that leaves while it waits is noticed by the end of what it sends. One that sends the next request already
// is not watched further.
void HttpSession::watch() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), request = request_](NetError error) {
    if (error || request != self->request_ || self->answer_ == Answer::none) return;
    char byte;
    const ssize_t got = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) self->disconnect();
  });
}

void HttpSession::on_answer_late() {
  *gone_ = true;
  if (answer_ == Answer::waited_for)
    return fail(504, cat("the answer took longer than ", host_.limits.answer.count(), " seconds"));
  disconnect();
}

void HttpSession::disconnect() {
  *gone_ = true;
  disarm();
  NetError ignored;
  socket_.close(ignored);
  set_answer(Answer::none);
}

std::string HttpSession::head_of(const HttpResponse& response, bool chunked) const {
  http::response<http::empty_body> head(static_cast<http::status>(response.status), version_);
  head.set(http::field::server, "witan");
  head.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) head.set(name, value);
  if (!response.allow.empty()) head.set(http::field::allow, response.allow);
  if (response.status == 401) head.set(http::field::www_authenticate, "Bearer");
  if (response.status == 429 || response.status == 503) head.set(http::field::retry_after, "1");
  if (chunked)
    head.chunked(version_ >= 11);
  else
    head.content_length(response.body.size());
  if (chunked) head.set(http::field::cache_control, "no-cache");
  head.keep_alive(keep_alive_);
  std::ostringstream text;
  text << head.base();
  return text.str();
}

void HttpSession::send(uint64_t request, const HttpResponse& response) {
  if (!is_current(request, Answer::waited_for)) return;
  set_answer(Answer::ending);
  write(whole(response));
}

void HttpSession::begin_events(uint64_t request) {
  if (!is_current(request, Answer::waited_for)) return;
  set_answer(Answer::streaming);
  if (version_ < 11) keep_alive_ = false;  // the end of the connection is the end of the answer
  write(head_of({.content_type = "text/event-stream"}, true));
}

void HttpSession::event(uint64_t request, const std::string& data) {
  if (!is_current(request, Answer::streaming) || head_only_) return;
  const std::string text = "data: " + data + "\n\n";
  if (version_ < 11) return write(text);
  std::ostringstream size;
  size << std::hex << text.size();
  write(size.str() + "\r\n" + text + "\r\n");
}

void HttpSession::end_events(uint64_t request) {
  if (!is_current(request, Answer::streaming)) return;
  set_answer(Answer::ending);
  write(version_ < 11 || head_only_ ? "" : "0\r\n\r\n");
}

void HttpSession::abandoned(uint64_t request) {
  if (is_current(request, Answer::streaming)) disconnect();
  if (is_current(request, Answer::waited_for)) fail(500, "the request was not answered");
}

void HttpSession::write(const std::string& bytes) {
  unsent_ += bytes;
  // An answer that was made whole is as long as it is; one that grows must be read as it does.
  if (answer_ == Answer::streaming && static_cast<int64_t>(unsent_.size()) > host_.limits.unsent_bytes)
    return disconnect();
  flush();
}

void HttpSession::flush() {
  if (sending_) return;
  if (unsent_.empty()) {
    if (answer_ == Answer::ending) end_request();
    return;
  }
  sending_ = true;
  sent_ = std::exchange(unsent_, {});
  if (answer_ != Answer::none) arm(host_.limits.send, &HttpSession::disconnect);
  net::async_write(socket_, net::buffer(sent_), [self = shared_from_this()](NetError error, size_t) {
    self->sending_ = false;
    if (error) return self->disconnect();
    if (self->answer_ == Answer::streaming)
      self->arm(self->answer_by_ - std::chrono::steady_clock::now(), &HttpSession::on_answer_late);
    self->flush();
  });
}

void HttpSession::end_request() {
  disarm();
  set_answer(Answer::none);
  if (!keep_alive_) return close_slowly();
  wait_for_request();
}

// An answer that the server gives by itself is the connection's last.
void HttpSession::fail(int status, const std::string& message) {
  keep_alive_ = false;
  set_answer(Answer::ending);
  write(whole({status, host_.error_body(status, message)}));
}

// A socket that is closed while the client still sends would take the answer with it.
void HttpSession::close_slowly() {
  NetError ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(HttpLimits::Seconds(kLingerSeconds), &HttpSession::disconnect);
  buffer_.clear();
  discard();
}

void HttpSession::discard() {
  socket_.async_read_some(buffer_.prepare(16 << 10), [self = shared_from_this()](NetError error, size_t) {
    if (error) return self->disconnect();
    self->discard();
  });
}

tcp::resolver::results_type resolve_host(net::io_context& io, const std::string& host, int port) {
  NetError error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  require<UsageError>(!error && !found.empty(), "--host ", host, ": no such host: ", error.message());
  return found;
}

}  // namespace

struct HttpServer::Impl {
  Impl(const std::string& name, int port, const HttpLimits& limits, Handler handler, ErrorBody error_body)
      : handlers(kHandlerThreads), acceptor(host.io) {
    host.limits = limits;
    host.error_body = std::move(error_body);
    host.dispatch = [this, handler = std::move(handler)](HttpRequest request, std::shared_ptr<Reply> reply) {
      net::post(handlers, [this, &handler, request = std::move(request), reply = std::move(reply)] {
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
      if (!error) {
        NetError ignored;
        socket.set_option(tcp::no_delay(true), ignored);  // events are small, and each is waited for
        const bool full = host.sessions >= host.limits.connections;
        const auto session = std::make_shared<HttpSession>(std::move(socket), host);
        if (full)
          session->refuse(503, cat("there are ", host.limits.connections, " connections already: try again later"));
        else
          session->start();
      }
      accept();
    });
  }

  SessionHost host;  // before what uses its io_context
  net::thread_pool handlers;
  tcp::acceptor acceptor;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler,
                       ErrorBody error_body)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handler), std::move(error_body))) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->acceptor.local_endpoint().port();
}

int64_t HttpServer::busy() const {
  return impl_->host.busy;
}

bool is_loopback(const std::string& host) {
  net::io_context io;
  const auto found = resolve_host(io, host, 0);
  return std::all_of(found.begin(), found.end(),
                     [](const auto& entry) { return entry.endpoint().address().is_loopback(); });
}

}  // namespace witan::serve
