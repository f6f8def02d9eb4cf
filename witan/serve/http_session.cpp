#include "witan/serve/http_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <sstream>

#include "witan/base/error.h"

namespace witan::serve {
namespace {

constexpr size_t kPiece = 64 << 10;  // of a body, per read
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr double kLingerSeconds = 2;  // to drain what a refused client is still sending

// The reply to one request: forwards calls from any thread to the session's I/O thread.
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

}  // namespace

HttpSession::HttpSession(tcp::socket socket, SessionHost& host)
    : socket_(std::move(socket)),
      timer_(host.io),
      host_(host),
      buffer_(static_cast<size_t>(host.limits.header_bytes) + kPiece) {
  ++host_.open;
}

void HttpSession::arm(HttpLimits::Seconds time, Late late) {
  const uint64_t alarm = ++alarm_;
  timer_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(time));
  timer_.async_wait([self = shared_from_this(), alarm, late](NetError error) {
    if (!error && alarm == self->alarm_) ((*self).*late)();
  });
}

void HttpSession::set_dispensable(std::optional<Dispensable> kind) {
  if (place_) host_.dispensable.erase(*place_);
  place_.reset();
  if (!kind) return;
  place_.emplace(*kind, host_.places++);
  host_.dispensable.emplace(*place_, this);
}

void HttpSession::wait_for_request() {
  timed_out_ = head_only_ = keep_alive_ = false;
  set_dispensable(Dispensable::without_head);
  if (buffer_.size() > 0) return receive_head();  // the next request arrived together with the last
  buffer_.shrink_to_fit();
  arm(host_.limits.idle, &HttpSession::disconnect);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](NetError error) {
    if (error) return self->disconnect();
    self->receive_head();
  });
}

void HttpSession::receive_head() {
  scanner_ = {};
  arm(host_.limits.head, &HttpSession::on_receive_late);
  read_head();
}

void HttpSession::read_head() {
  const auto state = scanner_.scan({static_cast<const char*>(buffer_.data().data()), buffer_.size()});
  const auto limit = static_cast<size_t>(host_.limits.header_bytes);
  if (state == HeadScanner::State::malformed) return fail(400, cat("malformed HTTP request: ", scanner_.error()));
  if (state == HeadScanner::State::complete ? scanner_.end() > limit : buffer_.size() >= limit)
    return fail(431, cat("the request's header is longer than ", limit, " bytes"));
  if (state == HeadScanner::State::complete) return on_head();
  const size_t room = std::min<size_t>(4 << 10, limit - buffer_.size());
  socket_.async_read_some(buffer_.prepare(room), [self = shared_from_this()](NetError error, size_t count) {
    if (error || self->timed_out_) return self->on_receive_error(error);
    if (!self->socket_.is_open()) return;  // closed in favour of another
    self->buffer_.commit(count);
    self->read_head();
  });
}

void HttpSession::on_head() {
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(host_.limits.header_bytes));
  parser_->body_limit(static_cast<uint64_t>(host_.limits.body_bytes));
  NetError error;
  parser_->put(net::buffer(buffer_.data() + scanner_.begin(), scanner_.end() - scanner_.begin()), error);
  buffer_.consume(scanner_.end());
  if (error) return on_receive_error(error);
  if (const auto refusal = read_request()) return fail(refusal->status, refusal->message);
  try {
    if (host_.on_head)
      if (const auto response = host_.on_head(incoming_)) return answer_at_head(*response);
  } catch (const std::exception& problem) {
    return fail(500, problem.what());
  }
  if (parser_->is_done()) return dispatch();
  invite_body();
  set_dispensable(Dispensable::without_body);
  body_share_ = std::make_shared<BodyBudget::Share>(host_.bodies);
  arm(host_.limits.receive, &HttpSession::on_receive_late);
  receive_body();
}

// Reads the parsed head; returns why it must be refused, if so.
std::optional<Refusal> HttpSession::read_request() {
  const auto& head = parser_->get();
  version_ = head.version();
  head_only_ = head.method() == http::verb::head;
  FramingLines lines{.is_1_0 = version_ < 11};
  for (const auto& field : head) {
    const std::string_view value(field.value().data(), field.value().size());
    if (field.name() == http::field::host) lines.hosts.push_back(value);
    if (field.name() == http::field::content_length) lines.lengths.push_back(value);
    if (field.name() == http::field::transfer_encoding) lines.encodings.push_back(value);
  }
  if (auto refusal = framing_error(lines)) return refusal;
  const auto target = split_target({head.target().data(), head.target().size()});
  if (!target) return Refusal{400, "malformed HTTP request: its target is neither a path nor a URL"};
  keep_alive_ = head.keep_alive();
  const auto text = [&](http::field field) { return std::string(head[field]); };
  incoming_ = {.method = std::string(head.method_string()),
               .path = std::string(target->path),
               .authorization = text(http::field::authorization),
               .content_type = text(http::field::content_type),
               .body = {},
               .query = std::string(target->query),
               .host = target->host ? std::string(*target->host) : text(http::field::host),
               .origin = text(http::field::origin),
               .accept_encoding = text(http::field::accept_encoding)};
  return {};
}

// Sends 100 Continue to clients that wait for it (RFC 9110, section 10.1.1).
void HttpSession::invite_body() {
  if (version_ >= 11 && boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) write(kContinue);
}

void HttpSession::receive_body() {
  http::async_read_some(socket_, buffer_, *parser_, [self = shared_from_this()](NetError error, size_t) {
    if (error || self->timed_out_) return self->on_receive_error(error);
    if (!self->socket_.is_open()) return;  // closed in favour of another, after this piece had come
    if (!self->body_share_->grow_to(static_cast<int64_t>(self->parser_->get().body().size())))
      return self->fail(503, "the bodies of all requests together are too large now: try again later");
    if (!self->parser_->is_done()) return self->receive_body();
    self->incoming_.body = std::move(self->parser_->get().body());
    self->dispatch();
  });
}

// Cancels the pending operation, whose handler then answers.
void HttpSession::on_receive_late() {
  timed_out_ = true;
  NetError ignored;
  socket_.cancel(ignored);
}

void HttpSession::on_receive_error(NetError error) {
  const HttpLimits& limits = host_.limits;
  if (timed_out_)
    return fail(408, cat("the request was not received in time: its header must come within ", limits.head.count(),
                         " seconds, its body within ", limits.receive.count()));
  if (error == http::error::body_limit)
    return fail(413, cat("the request's body is longer than ", limits.body_bytes, " bytes"));
  const bool in_request = parser_ || buffer_.size() > 0;
  if (in_request && (error == net::error::eof || error == http::error::partial_message))
    return fail(400, "malformed HTTP request: it ends before it is complete");
  if (error.category() != http::make_error_code(http::error::bad_method).category()) return disconnect();
  fail(400, cat("malformed HTTP request: ", error.message()));
}

void HttpSession::set_answer(Answer answer) {
  if (answer_ == Answer::none && answer != Answer::none) ++host_.busy;
  if (answer_ != Answer::none && answer == Answer::none) --host_.busy;
  answer_ = answer;
}

// A body that is still to come is not read.
void HttpSession::answer_at_head(const HttpResponse& response) {
  if (!parser_->is_done()) keep_alive_ = false;
  parser_.reset();
  ++request_;
  set_dispensable({});
  set_answer(Answer::ending);
  write(whole(response));
}

void HttpSession::dispatch() {
  parser_.reset();
  gone_ = std::make_shared<std::atomic<bool>>(false);
  ++request_;
  set_dispensable({});
  set_answer(Answer::waited_for);
  arm(host_.limits.answer, &HttpSession::on_answer_late);
  answer_by_ = timer_.expiry();
  watch();
  host_.dispatch(std::exchange(incoming_, {}), std::exchange(body_share_, nullptr),
                 std::make_shared<SessionReply>(shared_from_this(), host_, request_, gone_));
}

// Detects a client that leaves while waiting: its sending side or the connection ends.
void HttpSession::watch() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), request = request_](NetError error) {
    if (error || request != self->request_ || self->answer_ == Answer::none) return;
    char byte;
    const ssize_t got = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && errno != EAGAIN && errno != EINTR) return self->disconnect();
    if (got == 0) self->on_half_closed();
    self->watch_for_reset();
  });
}

// Only one such wait at a time: if the client pipelines its next requests, no error ends the wait.
void HttpSession::watch_for_reset() {
  if (!socket_.is_open() || std::exchange(watches_for_reset_, true)) return;
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](NetError error) {
    self->watches_for_reset_ = false;
    if (!error && self->answer_ != Answer::none) self->disconnect();
  });
}

// A client that has only closed its sending side still waits for the answer, but looks like one that left. To tell them
// apart this sends something that clients ignore (RFC 9110, section 15.2; comments of server-sent events): the system
// of a client that left replies with a reset. HTTP/1.0 allows nothing before the answer, which such clients get in
// full.
void HttpSession::on_half_closed() {
  if (answer_ == Answer::waited_for && version_ >= 11) write(kContinue);
  if (answer_ == Answer::streaming && !head_only_) write(piece(":\n\n"));
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
  set_dispensable({});
  body_share_.reset();
  if (socket_.is_open()) --host_.open;
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
  write(piece("data: " + data + "\n\n"));
}

// A piece of a stream's body, as a chunk if the client supports chunks.
std::string HttpSession::piece(const std::string& text) const {
  if (version_ < 11) return text;
  std::ostringstream size;
  size << std::hex << text.size();
  return size.str() + "\r\n" + text + "\r\n";
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
  // Whole answers may have any length; a stream must be read about as fast as it grows.
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
    if (self->answer_ == Answer::streaming || self->answer_ == Answer::waited_for)
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

// An error answer of the server itself ends the connection.
void HttpSession::fail(int status, const std::string& message) {
  keep_alive_ = false;
  parser_.reset();
  body_share_.reset();
  ++request_;
  set_dispensable({});
  set_answer(Answer::ending);
  write(whole({status, host_.error_body(status, message)}));
}

// Closing a socket while the client still sends would discard the answer.
void HttpSession::close_slowly() {
  NetError ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  set_dispensable(Dispensable::closing);
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

}  // namespace witan::serve
