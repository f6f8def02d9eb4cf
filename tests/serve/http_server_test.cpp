// The HTTP server with clients that misbehave, are slow, come in large numbers, or disconnect.
#include "witan/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "serve/http_client.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::HttpAnswer;
using test::HttpClient;
using ::testing::HasSubstr;
using Seconds = serve::HttpLimits::Seconds;

const std::string kGet = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

class HttpServerTest : public ::testing::Test {
 protected:
  // Echoes the request.
  void start(const serve::HttpLimits& limits = {}) {
    start(limits, [](const serve::HttpRequest& request, const std::shared_ptr<serve::Reply>& reply) {
      reply->send({200, request.method + " " + request.path + " " + request.body, "text/plain"});
    });
  }
  void start(const serve::HttpLimits& limits, serve::HttpServer::Handler handler,
             serve::HttpServer::OnHead on_head = {}) {
    server_.emplace(
        "127.0.0.1", 0, limits, std::move(handler),
        [](int status, const std::string& message) { return std::to_string(status) + " " + message; },
        std::move(on_head));
  }
  int port() const { return server_->port(); }
  HttpAnswer say(const std::string& bytes) {
    HttpClient client(port());
    client.send(bytes);
    return client.answer();
  }
  std::optional<serve::HttpServer> server_;
};

// Answers only when a test releases it.
class HeldServerTest : public HttpServerTest {
 protected:
  void start(const serve::HttpLimits& limits) {
    HttpServerTest::start(limits, [this](const auto&, auto reply) {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(reply));
    });
  }
  void wait_for_held(size_t count) {
    for (bool there = false; !there; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      there = held_.size() == count;
    }
  }
  void answer_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& reply : held_) reply->send({200, "held", "text/plain"});
    held_.clear();
  }
  void TearDown() override { held_.clear(); }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<serve::Reply>> held_;
};

TEST_F(HttpServerTest, AnswersRequestsInOrder) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.get("/a?b=c").body, "GET /a ");
  EXPECT_EQ(client.post("/b", "body").body, "POST /b body");
  client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");  // both in one send
  EXPECT_EQ(client.answer().body, "GET /1 ");
  EXPECT_EQ(client.answer().body, "GET /2 ");
  EXPECT_EQ(client.get("/c", "Connection: close\r\n").body, "GET /c ");
  EXPECT_FALSE(client.receive());
}

// A client would take a body for the next answer.
TEST_F(HttpServerTest, AnswersHeadWithoutABody) {
  start();
  HttpClient client(port());
  client.send(
      "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\nHEAD /c HTTP/1.1\r\nHost: "
      "a\r\n\r\nnonsense\r\n\r\n");
  const HttpAnswer head = client.head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(HttpClient::header(head.head, "Content-Length"), std::to_string(std::string("HEAD /a ").size()));
  EXPECT_EQ(client.answer().body, "GET /b ");
  EXPECT_EQ(client.head().status, 200);
  EXPECT_THAT(client.answer().body, HasSubstr("400 malformed HTTP request")) << "head in lower case is not HEAD";
}

TEST_F(HttpServerTest, SendsNoEventsForHead) {
  start({}, [](const serve::HttpRequest&, const std::shared_ptr<serve::Reply>& reply) {
    reply->begin_events();
    reply->event("one");
    reply->end_events();
  });
  HttpClient client(port());
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(HttpClient::header(client.head().head, "Content-Type"), "text/event-stream");
  EXPECT_EQ(client.head().status, 200);
  EXPECT_FALSE(client.receive()) << "no further bytes";
}

TEST_F(HttpServerTest, AcceptsChunkedBodiesAndExpectContinue) {
  start();
  EXPECT_EQ(
      say("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").body,
      "POST /a abcde");
  HttpClient client(port());
  client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.answer().status, 100);
  client.send("ab");
  EXPECT_EQ(client.answer().body, "POST /a ab");
}

TEST_F(HttpServerTest, RefusesInvalidRequests) {
  start();
  for (const char* bad :
       {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n", "\x16\x03\x01\x02\x01\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nname\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    const HttpAnswer answer = say(bad);
    EXPECT_EQ(answer.status, 400) << bad << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("400 malformed HTTP request"));
  }
}

// Another program on the path could take these for one request or for two.
TEST_F(HttpServerTest, RefusesBodiesOfUnknownLengthAndClosesTheConnection) {
  start();
  const std::string hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
  const auto expect = [&](int status, const std::string& lines, const std::string& body) {
    HttpClient client(port());
    client.send("POST / HTTP/1.1\r\nHost: a\r\n" + lines + "\r\n" + body + hidden);
    const HttpAnswer answer = client.answer();
    EXPECT_EQ(answer.status, status) << lines << answer.body;
    EXPECT_EQ(HttpClient::header(answer.head, "Connection"), "close") << lines;
    EXPECT_FALSE(client.receive()) << lines << "no further answer";
  };
  const std::string chunks = "1\r\na\r\n0\r\n\r\n";
  for (const char* coding :
       {"identity", "xchunked", "chunkedx", "gzip", "chunked, chunked", "chunked, gzip", "\"chunked\"", "'chunked'", "",
        ",", "chunked,", ", chunked", "gzip chunked", "chunked;a=b", "chunked\tx", "chunked, gzip, chunked"})
    expect(400, cat("Transfer-Encoding: ", coding, "\r\n"), chunks);
  for (const char* coding :
       {"gzip, chunked", "identity, chunked", "gzip;q=1 , Chunked", "x\r\nTransfer-Encoding: chunked"})
    expect(501, cat("Transfer-Encoding: ", coding, "\r\n"), chunks);
  for (const char* lines : {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
                            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                            "Content-Length: 0\r\nTransfer-Encoding: identity\r\n",
                            "Content-Length: 1\r\nContent-Length: 1\r\n",
                            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                            "Content-Length: 1, 1\r\n",
                            "Content-Length: +1\r\n",
                            "Content-Length: -1\r\n",
                            "Content-Length: 0x1\r\n",
                            "Content-Length: 1 1\r\n",
                            "Content-Length:\r\n",
                            "Content-Length: 18446744073709551617\r\n",
                            "Transfer-Encoding : chunked\r\n",
                            "Content-Length : 1\r\n",
                            "Transfer-Encoding:\r\n chunked\r\n",
                            "name: a\r\n\tb\r\n",
                            "name: a\nb: c\r\n",
                            "name: a\rb\r\n",
                            "na me: a\r\n",
                            ": a\r\n",
                            "name\r\n",
                            "Host: a\r\n",
                            "name: a\x01\r\n"})
    expect(400, lines, chunks);
  for (const char* bad : {"1\na\r\n0\r\n\r\n", "1 \ra\r\n0\r\n\r\n", "0x1\r\na\r\n0\r\n\r\n", "-1\r\na\r\n0\r\n\r\n",
                          "1\r\nab0\r\n\r\n", "10000000000000001\r\na\r\n0\r\n\r\n", ";a=b\r\n\r\n", "\r\n"})
    expect(400, "Transfer-Encoding: chunked\r\n", bad);
}

// A proxy may speak HTTP/1.0, whose clients support neither chunks nor interim answers.
TEST_F(HttpServerTest, Http10ClientsGetOneAnswerAndTheConnectionEnds) {
  start({}, [](const serve::HttpRequest& request, const auto& reply) {
    if (request.method == "POST") return reply->send({200, request.body, "text/plain"});
    reply->begin_events();
    reply->event("one");
    reply->end_events();
  });
  HttpClient events(port());
  events.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const HttpAnswer answer = events.answer();
  EXPECT_NE(HttpClient::header(answer.head, "Connection"), "keep-alive");
  EXPECT_EQ(answer.body, "data: one\n\n") << "until the connection ends";
  HttpClient invited(port());
  invited.send("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  invited.send("ab");
  EXPECT_EQ(invited.head().status, 200) << "without an interim answer";
}

TEST_F(HttpServerTest, ChunkedIsCaseInsensitiveAndTrailersAreIgnored) {
  start({}, [](const serve::HttpRequest& request, const auto& reply) {
    reply->send({200, request.host + " " + request.authorization + " " + request.body, "text/plain"});
  });
  HttpClient client(port());
  for (const char* coding : {"chunked", "Chunked", " CHUNKED \t"}) {
    client.send(cat("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:", coding,
                    "\r\n\r\n1;x=y\r\na\r\n00\r\nAuthorization: b\r\nHost: evil\r\n\r\n"));
    EXPECT_EQ(client.answer().body, "a  a") << coding;
  }
}

TEST_F(HttpServerTest, LimitsChunkExtensionsAndTrailers) {
  start();
  const std::string begin = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", much(1 << 20, 'a');
  EXPECT_EQ(say(begin + "1;" + much).status, 400);
  EXPECT_EQ(say(begin + "0\r\nname: " + much).status, 400);
}

TEST_F(HttpServerTest, RequiresAHostHeader) {
  start();
  EXPECT_EQ(say("GET / HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(say("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n").status, 400);
  EXPECT_EQ(say("GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n").status, 400);
  for (const char* bad : {"a b", "a/b", "me@a", "a, b", "a\\b", "\"a\"", "a?b", "\xc3\xa9"})
    EXPECT_EQ(say(cat("GET / HTTP/1.1\r\nHost: ", bad, "\r\n\r\n")).status, 400) << bad;
  for (const char* good : {"", "a", "a:1", "[::1]:80", "a%20b", "192.0.2.1"})
    EXPECT_EQ(say(cat("GET / HTTP/1.1\r\nHost: ", good, "\r\n\r\n")).status, 200) << good;
  EXPECT_EQ(say("GET / HTTP/1.0\r\n\r\n").status, 200) << "HTTP/1.0 has no Host";
  EXPECT_EQ(say("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").status, 400)
      << "and no transfer codings";
}

TEST_F(HttpServerTest, AcceptsAbsoluteUrls) {
  start();
  EXPECT_EQ(say("GET http://b:1/c?d HTTP/1.1\r\nHost: a\r\n\r\n").body, "GET /c ");
  EXPECT_EQ(say("GET HTTP://b HTTP/1.1\r\nHost: a\r\n\r\n").body, "GET / ");
  EXPECT_EQ(say("GET http://b?c HTTP/1.1\r\nHost: a\r\n\r\n").body, "GET / ");
  EXPECT_EQ(say("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").body, "OPTIONS * ");
  for (const char* bad : {"a", "ftp://b/", "http:///c", "http://me@b/", "/a#b", "?a"})
    EXPECT_EQ(say(cat("GET ", bad, " HTTP/1.1\r\nHost: a\r\n\r\n")).status, 400) << bad;
}

TEST_F(HttpServerTest, SkipsEmptyLinesBeforeARequest) {
  start();
  HttpClient client(port());
  client.send("\r\n\r\n" + kGet + "\r\n" + kGet);
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(client.answer().status, 200);
}

// `nc -N` and other clients close their sending side after the request.
TEST_F(HeldServerTest, AnswersClientsThatClosedTheirSendingSide) {
  start({});
  for (const char* version : {"1.0", "1.1"}) {
    HttpClient client(port());
    client.send(cat("GET / HTTP/", version, "\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"));
    wait_for_held(1);
    client.end_sending();
    if (std::string(version) == "1.1") {
      EXPECT_EQ(client.head().status, 100) << "this detects whether the client has left";
    }
    answer_all();
    EXPECT_EQ(client.answer().body, "held");
    EXPECT_FALSE(client.receive()) << "the connection ends";
  }
  HttpClient two(port());
  two.send(kGet + "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
  two.end_sending();
  for (int answer = 0; answer < 2; ++answer) {
    wait_for_held(1);
    answer_all();
    HttpAnswer one = two.answer();
    while (one.status == 100) one = two.answer();
    EXPECT_EQ(one.body, "held");
  }
  HttpClient cut_off(port());
  cut_off.send("GET / HT");
  cut_off.end_sending();
  EXPECT_EQ(cut_off.answer().status, 400);
}

TEST_F(HttpServerTest, AnswersHeadsBeforeTheirBodies) {
  std::atomic<int> handled = 0;
  start(
      {},
      [&](const auto&, const auto& reply) {
        ++handled, reply->send({200, "handled", "text/plain"});
      },
      [](const serve::HttpRequest& head) -> std::optional<serve::HttpResponse> {
        if (head.path == "/throw") throw std::runtime_error("a mistake");
        if (head.path != "/refused") return {};
        return serve::HttpResponse{403, "refused", "text/plain"};
      });
  HttpClient client(port());
  EXPECT_EQ(client.get("/refused").status, 403);
  EXPECT_EQ(client.get("/a").body, "handled") << "the connection stays open if there is no body";
  client.send("POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  EXPECT_EQ(client.answer().status, 403);
  EXPECT_FALSE(client.receive());
  EXPECT_EQ(say("GET /throw HTTP/1.1\r\nHost: a\r\n\r\n").status, 500);
  EXPECT_EQ(handled, 1);
}

TEST_F(HeldServerTest, LimitsTheTotalSizeOfBodies) {
  start({.body_bytes = 1000, .all_bodies_bytes = 1500});
  const auto begin = [](int bytes) { return cat("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", bytes, "\r\n\r\n"); };
  auto first = std::make_unique<HttpClient>(port());
  first->send(begin(1000) + std::string(999, 'a'));
  while (server_->body_bytes() < 999) std::this_thread::yield();
  const HttpAnswer full = say(begin(900) + std::string(899, 'a'));
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(HttpClient::header(full.head, "Retry-After"), "1");
  EXPECT_EQ(
      say(cat("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n200\r\n", std::string(512, 'a'))).status,
      503)
      << "also in chunks";
  first.reset();
  while (server_->body_bytes() > 0) std::this_thread::yield();
  HttpClient second(port());
  second.send(begin(900) + std::string(900, 'a'));
  wait_for_held(1);
  while (server_->body_bytes() > 0) std::this_thread::yield();
  answer_all();
  EXPECT_EQ(second.answer().status, 200);
}

// All of the budget can be used, and a refused body releases its share at once.
TEST_F(HttpServerTest, RefusedBodiesReleaseTheirShareOfTheLimit) {
  start({.body_bytes = 1000, .all_bodies_bytes = 1500});
  const auto begin = [](int bytes) { return cat("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", bytes, "\r\n\r\n"); };
  const auto wait_for_bytes = [&](int64_t bytes) {
    while (server_->body_bytes() != bytes) std::this_thread::yield();
  };
  HttpClient first(port()), refused(port());
  first.send(begin(1000) + std::string(900, 'a'));
  wait_for_bytes(900);
  refused.send(begin(1000) + std::string(400, 'a'));
  wait_for_bytes(1300);
  refused.send(std::string(300, 'a'));
  EXPECT_EQ(refused.answer().status, 503);
  EXPECT_EQ(server_->body_bytes(), 900) << "while the connection is still open";
  EXPECT_EQ(say(begin(600) + std::string(600, 'a')).status, 200);
  EXPECT_EQ(say(begin(601) + std::string(601, 'a')).status, 503);
}

TEST_F(HttpServerTest, LimitsSizes) {
  start({.header_bytes = 1000, .body_bytes = 100});
  const HttpAnswer header = say("GET / HTTP/1.1\r\nHost: a\r\nname: " + std::string(2000, 'a') + "\r\n\r\n");
  EXPECT_EQ(header.status, 431);
  EXPECT_THAT(header.body, HasSubstr("longer than 1000 bytes"));
  const std::string begin = "GET / HTTP/1.1\r\nHost: a\r\nname: ", end = "\r\n\r\n";
  for (const size_t bytes : {size_t{1000}, size_t{1001}})
    EXPECT_EQ(say(begin + std::string(bytes - begin.size() - end.size(), 'a') + end).status, bytes > 1000 ? 431 : 200);
  EXPECT_EQ(say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'a')).status, 200);
  EXPECT_EQ(say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n").status, 413);
  const HttpAnswer chunks =
      say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'a'));
  EXPECT_EQ(chunks.status, 413);
  EXPECT_EQ(HttpClient::header(chunks.head, "Connection"), "close");
}

// The client keeps sending and reads only afterwards.
TEST_F(HttpServerTest, RefusalsOfLargeBodiesArrive) {
  start({.body_bytes = 100});
  HttpClient client(port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
  client.send(std::string(4000000, 'a'));
  EXPECT_EQ(client.answer().status, 413);
}

TEST_F(HttpServerTest, AnswersSlowClientsWithATimeout) {
  start({.head = Seconds(.05), .receive = Seconds(.07)});
  EXPECT_THAT(say("GET / HT").body,
              HasSubstr("408 the request was not received in time: its header must come within 0.05"));
  const HttpAnswer body = say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.status, 408);
  EXPECT_THAT(body.body, HasSubstr("its body within 0.07"));
}

// The time limits also hold for clients that keep sending single bytes.
TEST_F(HttpServerTest, SingleBytesDoNotExtendTheTimeLimit) {
  start({.head = Seconds(.1), .receive = Seconds(.1)});
  for (const char* begin :
       {"GET / HTTP/1.1\r\nHost: a\r\nname: ", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"}) {
    HttpClient client(port());
    client.send(begin);
    while (!client.is_answered_within(5) && client.send("a")) {
    }
    EXPECT_EQ(client.answer().status, 408);
  }
}

// A complete answer waits for its client no longer than a piece of a stream does.
TEST_F(HttpServerTest, DropsAnswersThatAreNotRead) {
  start({.send = Seconds(.05)}, [](const auto&, const auto& reply) {
    reply->send({200, std::string(64 << 20, 'a'), "text/plain"});
  });
  HttpClient client(port());
  client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  while (server_->busy() > 0) std::this_thread::yield();
}

TEST_F(HttpServerTest, ClosesIdleConnectionsSilently) {
  start({.idle = Seconds(.05)});
  HttpClient client(port());
  EXPECT_EQ(client.get("/a").status, 200);
  EXPECT_EQ(client.answer().status, 0);
}

TEST_F(HeldServerTest, LimitsConnectionsThatWaitForAnswers) {
  start({.connections = 2});
  HttpClient a(port()), b(port());
  a.send(kGet);
  b.send(kGet);
  wait_for_held(2);
  for (int again = 0; again < 3; ++again) {
    const HttpAnswer full = say(kGet);
    EXPECT_EQ(full.status, 503);
    EXPECT_EQ(HttpClient::header(full.head, "Retry-After"), "1");
  }
  answer_all();
  EXPECT_EQ(a.answer().status, 200);
  HttpClient c(port());
  c.send(kGet);
  wait_for_held(1);
  answer_all();
  EXPECT_EQ(c.answer().status, 200) << "a connection is free again";
}

// It does not matter how much of a request they have sent, or whether they have had an answer.
TEST_F(HttpServerTest, ConnectionsWithoutARequestMakeRoomForOthers) {
  start({.connections = 4});
  for (const char* begin : {"GET / HTTP/1.1\r\nname: ", "", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na",
                            "GET / HTTP/1.1\r\nHost: a\r\n\r\n"}) {
    std::vector<std::unique_ptr<HttpClient>> slow;
    for (int i = 0; i < 20; ++i) {
      slow.push_back(std::make_unique<HttpClient>(port()));
      slow.back()->send(begin);
    }
    EXPECT_EQ(say(kGet).status, 200) << begin;
  }
}

// The connection that has waited longest is closed; one with a complete head only if no other is left.
TEST_F(HttpServerTest, ClosesTheSlowestConnectionFirst) {
  start({.connections = 3});
  HttpClient body(port()), first(port()), second(port());
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na");
  while (server_->body_bytes() == 0) std::this_thread::yield();
  EXPECT_EQ(first.get("/1").status, 200);
  EXPECT_EQ(second.get("/2").status, 200);
  EXPECT_EQ(say(kGet).status, 200);
  EXPECT_FALSE(first.receive()) << "this one was closed";
  EXPECT_EQ(second.get("/3").status, 200);
  body.send("b");
  EXPECT_EQ(body.answer().body, "POST / ab");
}

TEST_F(HttpServerTest, TimesOutSlowHandlers) {
  std::promise<std::shared_ptr<serve::Reply>> asked;
  start({.answer = Seconds(.05)}, [&](const auto&, auto reply) { asked.set_value(std::move(reply)); });
  EXPECT_EQ(say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 504);
  std::shared_ptr<serve::Reply> kept = asked.get_future().get();
  EXPECT_TRUE(kept->gone());
  kept->send({200, "too late"});
  kept.reset();
}

TEST_F(HttpServerTest, UnansweredRequestsAreErrors) {
  start({}, [](const auto&, const auto&) {});
  EXPECT_EQ(say("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 500);
}

TEST_F(HttpServerTest, ThrowingHandlersAreErrors) {
  start({}, [](const auto&, const auto&) { throw std::runtime_error("a mistake"); });
  const HttpAnswer answer = say("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(answer.body, HasSubstr("a mistake"));
}

TEST_F(HttpServerTest, SendsEachEventAsAChunk) {
  start({}, [](const auto&, const auto& reply) {
    reply->begin_events();
    reply->event("one");
    reply->event("{\"two\": 2}");
    reply->end_events();
    reply->event("after the end");
  });
  HttpClient client(port());
  EXPECT_EQ(client.get("/").body, "data: one\n\ndata: {\"two\": 2}\n\n");
  EXPECT_EQ(client.get("/").body, "data: one\n\ndata: {\"two\": 2}\n\n") << "the connection stays open";
}

// A client that does not read is disconnected before its events fill the memory.
TEST_F(HttpServerTest, DisconnectsClientsThatDoNotReadEvents) {
  std::shared_ptr<serve::Reply> kept;
  std::atomic<bool> begun = false;
  start({.unsent_bytes = 1 << 20}, [&](const auto&, auto reply) {
    reply->begin_events();
    kept = reply;
    begun = true;
  });
  HttpClient client(port());
  client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  while (!begun) std::this_thread::yield();
  const std::string event(1 << 16, 'a');
  for (int i = 0; i < 1000; ++i) kept->event(event);  // 64 MiB, more than sockets buffer
  while (!kept->gone()) std::this_thread::yield();
  kept.reset();
}

TEST_F(HttpServerTest, DetectsDisconnectedClients) {
  std::shared_ptr<serve::Reply> kept;
  std::atomic<bool> begun = false;
  start({}, [&](const auto&, auto reply) {
    kept = reply;
    begun = true;
  });
  {
    HttpClient client(port());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    while (!begun) std::this_thread::yield();
    EXPECT_FALSE(kept->gone());
    EXPECT_EQ(server_->busy(), 1);
  }
  while (!kept->gone()) std::this_thread::yield();
  while (server_->busy() > 0) std::this_thread::yield();
  kept.reset();
}

TEST_F(HttpServerTest, ErrorsNameUnusableAddresses) {
  start();
  const auto listen = [](const std::string& host, int port) {
    serve::HttpServer server(
        host, port, {}, [](const auto&, const auto&) {}, [](int, const auto&) { return ""; });
  };
  EXPECT_THROW(listen("not a host", 0), UsageError);
  try {
    listen("127.0.0.1", port());
    ADD_FAILURE() << "two servers at one port";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("choose another with --port"));
  }
}

TEST_F(HttpServerTest, RecognisesLoopbackAddresses) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(serve::is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) EXPECT_FALSE(serve::is_loopback(host)) << host;
}

}  // namespace
}  // namespace witan
