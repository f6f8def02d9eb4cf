// One connection of the server: receives requests within limits and sends answers. Only this header includes
// Boost.Beast, which implements the protocol.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <map>
#include <optional>

#include "witan/serve/body_budget.h"
#include "witan/serve/http_framing.h"
#include "witan/serve/http_server.h"

namespace witan::serve {

namespace net = boost::asio;
namespace http = boost::beast::http;
using net::ip::tcp;
using NetError = boost::system::error_code;

class HttpSession;
using BodyShare = std::shared_ptr<BodyBudget::Share>;

// The states in which a connection may be closed in favour of a new one, in the order of preference.
enum class Dispensable : uint8_t { closing, without_head, without_body };

// The state shared by the sessions of a server.
struct SessionHost {
  explicit SessionHost(const HttpLimits& given) : limits(given), bodies(given.all_bodies_bytes) {}

  const HttpLimits limits;
  HttpServer::ErrorBody error_body;
  HttpServer::OnHead on_head;
  std::function<void(HttpRequest request, BodyShare share, std::shared_ptr<Reply> reply)> dispatch;  // to other threads
  BodyBudget bodies;
  std::atomic<int64_t> busy = 0;
  int64_t open = 0;  // connections; this and the following members belong to the I/O thread
  uint64_t places = 0;
  std::map<std::pair<Dispensable, uint64_t>, HttpSession*> dispensable;  // within a state, the oldest comes first
  net::io_context io{1};  // last: destroys the sessions, which use the other members
};

// One connection. Every method runs on the I/O thread. A session lives while one of its operations is pending or its
// request may still be answered.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(tcp::socket socket, SessionHost& host);
  ~HttpSession() { disconnect(); }
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void start() { wait_for_request(); }
  void refuse(int status, const std::string& message) { fail(status, message); }
  void disconnect();

  // For the request with this number; ignored if that request is over.
  void send(uint64_t request, const HttpResponse& response);
  void begin_events(uint64_t request);
  void event(uint64_t request, const std::string& data);
  void end_events(uint64_t request);
  void abandoned(uint64_t request);  // it will not be answered

 private:
  enum class Answer : uint8_t { none, waited_for, streaming, ending };
  using Late = void (HttpSession::*)();

  void wait_for_request();
  void receive_head();
  void read_head();
  void on_head();
  std::optional<Refusal> read_request();
  void invite_body();
  void receive_body();
  void on_receive_error(NetError error);
  void on_receive_late();
  void answer_at_head(const HttpResponse& response);
  void dispatch();
  void watch();
  void watch_for_reset();
  void on_half_closed();
  void on_answer_late();
  void set_answer(Answer answer);
  void set_dispensable(std::optional<Dispensable> kind);
  bool is_current(uint64_t request, Answer answer) const { return request == request_ && answer == answer_; }
  std::string head_of(const HttpResponse& response, bool chunked) const;
  std::string whole(const HttpResponse& response) const {
    return head_of(response, false) + (head_only_ ? "" : response.body);
  }
  std::string piece(const std::string& text) const;
  void write(const std::string& bytes);
  void flush();
  void end_request();
  void fail(int status, const std::string& message);
  void close_slowly();
  void discard();
  // Calls `late` after this time unless the timer is re-armed or disarmed before.
  void arm(HttpLimits::Seconds time, Late late);
  void disarm() { ++alarm_, timer_.cancel(); }

  tcp::socket socket_;
  net::steady_timer timer_;
  SessionHost& host_;
  boost::beast::flat_buffer buffer_;
  HeadScanner scanner_;
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest incoming_;  // head fields are copied before the body is received, so that trailers cannot change them
  BodyShare body_share_;
  std::optional<std::pair<Dispensable, uint64_t>> place_;  // in host_.dispensable
  uint64_t request_ = 0, alarm_ = 0;
  std::chrono::steady_clock::time_point answer_by_;
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);  // of the current request
  Answer answer_ = Answer::none;
  unsigned version_ = 11;
  bool keep_alive_ = false, head_only_ = false, timed_out_ = false, sending_ = false, watches_for_reset_ = false;
  std::string unsent_, sent_;  // queued bytes, and bytes being sent
};

}  // namespace witan::serve
