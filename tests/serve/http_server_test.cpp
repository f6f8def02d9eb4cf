// What the HTTP server does with clients that are wrong, slow, many, or gone.
#include "witan/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "serve/http_client.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::HttpAnswer;
using test::HttpClient;
using ::testing::HasSubstr;
using Seconds = serve::HttpLimits::Seconds;

class HttpServerTest : public ::testing::Test {
 protected:
  // Answers with what was asked.
  void start(const serve::HttpLimits& limits = {}) {
    start(limits, [](const serve::HttpRequest& request, const std::shared_ptr<serve::Reply>& reply) {
      reply->send({200, request.method + " " + request.path + " " + request.body, "text/plain"});
    });
  }
  void start(const serve::HttpLimits& limits, serve::HttpServer::Handler handler) {
    server_.emplace("127.0.0.1", 0, limits, std::move(handler),
                    [](int status, const std::string& message) { return std::to_string(status) + " " + message; });
  }
  int port() const { return server_->port(); }
  HttpAnswer say(const std::string& bytes) {
    HttpClient client(port());
    client.send(bytes);
    return client.answer();
  }
  std::optional<serve::HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneRequestAfterTheOther) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.get("/a?b=c").body, "GET /a ");
  EXPECT_EQ(client.post("/b", "body").body, "POST /b body");
  client.send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n");  // both at once
  EXPECT_EQ(client.answer().body, "GET /1 ");
  EXPECT_EQ(client.answer().body, "GET /2 ");
  EXPECT_EQ(client.get("/c", "Connection: close\r\n").body, "GET /c ");
  EXPECT_FALSE(client.receive());
}

// A body would be taken for the next answer.
TEST_F(HttpServerTest, HeadIsAnsweredWithoutABody) {
  start();
  HttpClient client(port());
  client.send("HEAD /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\nHEAD /c HTTP/1.1\r\n\r\nnonsense\r\n\r\n");
  const HttpAnswer head = client.head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(HttpClient::header(head.head, "Content-Length"), std::to_string(std::string("HEAD /a ").size()));
  EXPECT_EQ(client.answer().body, "GET /b ");
  EXPECT_EQ(client.head().status, 200);
  EXPECT_THAT(client.answer().body, HasSubstr("400 this is no HTTP request")) << "whatever that was, it was no HEAD";
}

TEST_F(HttpServerTest, EventsForHeadAreNone) {
  start({}, [](const serve::HttpRequest&, const std::shared_ptr<serve::Reply>& reply) {
    reply->begin_events();
    reply->event("one");
    reply->end_events();
  });
  HttpClient client(port());
  client.send("HEAD / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(HttpClient::header(client.head().head, "Content-Type"), "text/event-stream");
  EXPECT_EQ(client.head().status, 200);
  EXPECT_FALSE(client.receive()) << "and nothing else";
}

TEST_F(HttpServerTest, BodiesMayComeInChunksAndAfterAnInvitation) {
  start();
  EXPECT_EQ(say("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").body,
            "POST /a abcde");
  HttpClient client(port());
  client.send("POST /a HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.answer().status, 100);
  client.send("ab");
  EXPECT_EQ(client.answer().body, "POST /a ab");
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  start();
  for (const char* bad : {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n", "\x16\x03\x01\x02\x01\r\n\r\n",
                          "GET / HTTP/1.1\r\nname\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                          "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                          "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
                          "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    const HttpAnswer answer = say(bad);
    EXPECT_EQ(answer.status, 400) << bad << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("400 this is no HTTP request"));
  }
}

TEST_F(HttpServerTest, SizesHaveLimits) {
  start({.header_bytes = 1000, .body_bytes = 100});
  const HttpAnswer header = say("GET / HTTP/1.1\r\nname: " + std::string(2000, 'a') + "\r\n\r\n");
  EXPECT_EQ(header.status, 431);
  EXPECT_THAT(header.body, HasSubstr("longer than 1000 bytes"));
  EXPECT_EQ(say("POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'a')).status, 200);
  EXPECT_EQ(say("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n").status, 413);
  const HttpAnswer chunks = say("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'a'));
  EXPECT_EQ(chunks.status, 413);
  EXPECT_EQ(HttpClient::header(chunks.head, "Connection"), "close");
}

// Though the client is still sending, and reads only then.
TEST_F(HttpServerTest, TheRefusalOfALargeBodyArrives) {
  start({.body_bytes = 100});
  HttpClient client(port());
  client.send("POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n");
  client.send(std::string(4000000, 'a'));
  EXPECT_EQ(client.answer().status, 413);
}

TEST_F(HttpServerTest, SlowClientsAreTold) {
  start({.receive = Seconds(.05)});
  EXPECT_EQ(say("GET / HT").status, 408);
  const HttpAnswer body = say("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.status, 408);
  EXPECT_THAT(body.body, HasSubstr("0.05 seconds"));
}

// Who sends a byte now and then is not waited for any longer.
TEST_F(HttpServerTest, BytesThatDripBuyNoTime) {
  start({.receive = Seconds(.1)});
  for (const char* begin : {"GET / HTTP/1.1\r\nname: ", "POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"}) {
    HttpClient client(port());
    std::atomic<bool> answered = false;
    std::thread dripping([&] {
      client.send(begin);
      while (!answered && client.send("a")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    EXPECT_EQ(client.answer().status, 408);
    answered = true;
    dripping.join();
  }
}

// An answer that is whole waits for its client no longer than a stream's piece does.
TEST_F(HttpServerTest, AnswersThatNobodyTakesAreGivenUp) {
  start({.send = Seconds(.05)}, [](const auto&, const auto& reply) {
    reply->send({200, std::string(64 << 20, 'a'), "text/plain"});
  });
  HttpClient client(port());
  client.send("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  while (server_->busy() > 0) std::this_thread::yield();
}

TEST_F(HttpServerTest, IdleConnectionsAreClosedWithoutAWord) {
  start({.idle = Seconds(.05)});
  HttpClient client(port());
  EXPECT_EQ(client.get("/a").status, 200);
  EXPECT_EQ(client.answer().status, 0);
}

TEST_F(HttpServerTest, ConnectionsHaveALimit) {
  start({.connections = 2});
  HttpClient a(port()), b(port());
  EXPECT_EQ(a.get("/").status, 200);
  EXPECT_EQ(b.get("/").status, 200);
  EXPECT_EQ(say("GET / HTTP/1.1\r\n\r\n").status, 503);
  a.close();
  HttpAnswer answer = say("GET / HTTP/1.1\r\n\r\n");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (answer.status == 503 && std::chrono::steady_clock::now() < end) answer = say("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(answer.status, 200) << "there is room again";
}

TEST_F(HttpServerTest, AnswersThatTakeTooLongAreGivenUp) {
  std::promise<std::shared_ptr<serve::Reply>> asked;
  start({.answer = Seconds(.05)}, [&](const auto&, auto reply) { asked.set_value(std::move(reply)); });
  EXPECT_EQ(say("GET / HTTP/1.1\r\n\r\n").status, 504);
  std::shared_ptr<serve::Reply> kept = asked.get_future().get();
  EXPECT_TRUE(kept->gone());
  kept->send({200, "too late"});
  kept.reset();
}

TEST_F(HttpServerTest, ARequestThatNobodyAnswersIsAnError) {
  start({}, [](const auto&, const auto&) {});
  EXPECT_EQ(say("GET / HTTP/1.1\r\n\r\n").status, 500);
}

TEST_F(HttpServerTest, AHandlerThatThrowsIsAnError) {
  start({}, [](const auto&, const auto&) { throw std::runtime_error("a mistake"); });
  const HttpAnswer answer = say("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(answer.status, 500);
  EXPECT_THAT(answer.body, HasSubstr("a mistake"));
}

TEST_F(HttpServerTest, EventsAreChunksOfTheirOwn) {
  start({}, [](const auto&, const auto& reply) {
    reply->begin_events();
    reply->event("one");
    reply->event("{\"two\": 2}");
    reply->end_events();
    reply->event("after the end");
  });
  HttpClient client(port());
  EXPECT_EQ(client.get("/").body, "data: one\n\ndata: {\"two\": 2}\n\n");
  EXPECT_EQ(client.get("/").body, "data: one\n\ndata: {\"two\": 2}\n\n") << "the connection stays";
}

// Who does not read is cut off, instead of filling the memory.
TEST_F(HttpServerTest, EventsThatNobodyReadsEnd) {
  std::shared_ptr<serve::Reply> kept;
  std::atomic<bool> begun = false;
  start({.unsent_bytes = 1 << 20}, [&](const auto&, auto reply) {
    reply->begin_events();
    kept = reply;
    begun = true;
  });
  HttpClient client(port());
  client.send("GET / HTTP/1.1\r\n\r\n");
  while (!begun) std::this_thread::yield();
  const std::string event(1 << 16, 'a');
  for (int i = 0; i < 4000 && !kept->gone(); ++i) {
    kept->event(event);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_TRUE(kept->gone());
  kept.reset();
}

TEST_F(HttpServerTest, ClientsThatLeaveAreNoticed) {
  std::shared_ptr<serve::Reply> kept;
  std::atomic<bool> begun = false;
  start({}, [&](const auto&, auto reply) {
    kept = reply;
    begun = true;
  });
  {
    HttpClient client(port());
    client.send("GET / HTTP/1.1\r\n\r\n");
    while (!begun) std::this_thread::yield();
    EXPECT_FALSE(kept->gone());
    EXPECT_EQ(server_->busy(), 1);
  }
  while (!kept->gone()) std::this_thread::yield();
  while (server_->busy() > 0) std::this_thread::yield();
  kept.reset();
}

TEST_F(HttpServerTest, PlacesThatCannotBeListenedAtAreNamed) {
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

TEST_F(HttpServerTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(serve::is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) EXPECT_FALSE(serve::is_loopback(host)) << host;
}

}  // namespace
}  // namespace witan
