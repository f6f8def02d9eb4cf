#include "witan/fetch/http.h"

#include <gtest/gtest.h>

#include <ctime>

#include "fetch/fetch_support.h"
#include "support/tls_front.h"
#include "witan/base/error.h"

namespace witan::fetch {
namespace {

struct Got {
  HttpResult result;
  std::string body;
};

Got get(HttpClient& client, const std::string& url, std::optional<ByteRange> range = std::nullopt) {
  Got got;
  got.result = client.get(url, range,
                          {[](const HttpResult&) { return true; },
                           [&](std::string_view bytes) {
                             got.body += bytes;
                             return true;
                           }});
  return got;
}

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() {
    ::setenv("no_proxy", "127.0.0.1", 1);
    server_.add(corpus());
    file_ = server_.endpoint() + "/datasets/owner/corpus/resolve/" + corpus().commit + "/data/a.jsonl";
  }
  HttpOptions with_token() const { return {"hf_secret", origin_of(server_.endpoint()), 5, 5}; }

  test::HubServer server_;
  std::string file_;
  const std::string content_ = corpus().files.at("data/a.jsonl");
};

TEST_F(HttpTest, FollowsRedirectsToRanges) {
  HttpClient client({});
  EXPECT_EQ(get(client, file_).body, content_);
  const Got part = get(client, file_, ByteRange{17, 1000});
  EXPECT_EQ(part.result.status, 206);
  EXPECT_EQ(part.body, content_.substr(17, 983));
  EXPECT_EQ(part.result.url, server_.content_endpoint() + "/datasets/owner/corpus/data/a.jsonl");
}

// The first assertion finds the token where it belongs, which shows that this test can fail.
TEST_F(HttpTest, SendsTheTokenToItsOriginOnly) {
  HttpClient client(with_token());
  EXPECT_EQ(get(client, file_).body, content_);
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].header("authorization"), "Bearer hf_secret");
  EXPECT_TRUE(requests[1].content);
  EXPECT_EQ(requests[1].headers.count("authorization"), 0u);
}

TEST_F(HttpTest, SendsNoTokenToAnotherNameOfTheHost) {
  const std::string elsewhere = "Location: http://localhost:" + server_.endpoint().substr(17) + "/x\r\n";
  server_.set_fault([&](const test::HubRequest& request) -> std::optional<test::HubFault> {
    if (request.path == "/x") return std::nullopt;
    return test::HubFault{.status = 307, .headers = elsewhere};
  });
  HttpClient client(with_token());
  get(client, file_);
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[1].path, "/x");
  EXPECT_EQ(requests[1].headers.count("authorization"), 0u);
}

// The hub sends size and hash of a file on another server along with the redirect to it.
TEST_F(HttpTest, KeepsFileHeadersOfARedirect) {
  HttpClient client({});
  const HttpResult result = get(client, file_, ByteRange{0, 10}).result;
  EXPECT_EQ(result.header("x-linked-size"), "100001");
  EXPECT_EQ(result.header("x-linked-etag"), "\"" + test::hex_digest(EVP_sha256(), content_) + "\"");
  EXPECT_EQ(result.header("x-xet-hash"), "") << "all other headers are those of the last response";
  EXPECT_EQ(result.header("content-length"), "10");
}

TEST_F(HttpTest, RefusesRedirectsThatAreNotHttp) {
  for (const char* target : {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"}) {
    server_.set_fault([&](const test::HubRequest&) {
      return test::HubFault{.status = 302, .headers = cat("Location: ", target, "\r\n")};
    });
    HttpClient client({});
    const Got got = get(client, file_);
    EXPECT_TRUE(got.result.permanent) << target;
    EXPECT_NE(got.result.failure.find("not safe to follow"), std::string::npos) << got.result.failure;
    EXPECT_EQ(got.body, "");
  }
}

TEST_F(HttpTest, StopsAtRedirectLoops) {
  for (const int status : {301, 302, 303, 307, 308}) {
    server_.set_fault(
        [&](const test::HubRequest&) { return test::HubFault{.status = status, .headers = "Location: /around\r\n"}; });
    HttpClient client({});
    EXPECT_EQ(get(client, file_).result.failure, "it redirects more than 10 times") << status;
  }
}

// "103 Early Hints" and the like precede the response; their headers must not count as its headers.
TEST_F(HttpTest, KeepsHeadersOfTheLastResponse) {
  server_.set_fault([](const test::HubRequest&) {
    return test::HubFault{.status = 103, .headers = "Link: </early>\r\n\r\nHTTP/1.1 200 OK\r\nX-Last: yes\r\n"};
  });
  HttpClient client({});
  const Got got = get(client, file_);
  EXPECT_EQ(got.result.status, 200);
  EXPECT_EQ(got.result.header("x-last"), "yes");
  EXPECT_EQ(got.result.header("link"), "");
}

TEST_F(HttpTest, KeepsABoundedNumberOfHeaders) {
  server_.set_fault([](const test::HubRequest&) {
    test::HubFault fault{.status = 404};
    for (int i = 0; i < 500; ++i) fault.headers += cat("X-", i, ": 1\r\n");
    return fault;
  });
  HttpClient client({});
  const Got got = get(client, file_);
  EXPECT_EQ(got.result.status, 404);
  EXPECT_LE(got.result.headers.size(), 200u);
}

TEST_F(HttpTest, ReportsTruncatedResponses) {
  server_.set_fault([](const test::HubRequest& request) -> std::optional<test::HubFault> {
    if (!request.content) return std::nullopt;
    return test::HubFault{.cut_after = 5000};
  });
  HttpClient client({});
  const Got got = get(client, file_);
  EXPECT_EQ(got.body, content_.substr(0, 5000));
  EXPECT_NE(got.result.failure, "");
  EXPECT_FALSE(got.result.permanent);
}

TEST_F(HttpTest, TimesOutSilentConnections) {
  server_.set_fault([](const test::HubRequest&) { return test::HubFault{.silent = true}; });
  HttpClient client({"", "", 5, 1});
  const Got got = get(client, file_);
  EXPECT_EQ(got.result.status, 0);
  EXPECT_NE(got.result.failure, "");
  EXPECT_FALSE(got.result.permanent);
}

// As when a machine has lost its network for a moment: the same client must succeed later. The name is too long for any
// server to be asked.
TEST_F(HttpTest, GoesOnAfterANameThatIsNotFound) {
  HttpClient client({});
  for (int i = 0; i < 2; ++i) {
    const Got lost = get(client, "http://" + std::string(64, 'a') + ".invalid/file");
    EXPECT_NE(lost.result.failure, "");
    EXPECT_FALSE(lost.result.permanent);
  }
  EXPECT_EQ(get(client, file_).body, content_);
}

TEST_F(HttpTest, KeepsTheStartOfAnErrorBody) {
  server_.set_fault([](const test::HubRequest&) {
    return test::HubFault{.status = 403, .headers = "X-Error-Code: GatedRepo\r\n", .endless = true};
  });
  HttpClient client({});
  const Got got = get(client, file_);
  EXPECT_EQ(got.result.status, 403);
  EXPECT_EQ(got.result.header("x-error-code"), "GatedRepo");
  EXPECT_EQ(got.result.said.size(), 4096u);
  EXPECT_EQ(got.body, "");
}

TEST_F(HttpTest, RethrowsExceptionsOfTheReceiver) {
  HttpClient client({});
  const HttpReceiver receiver = {[](const HttpResult&) { return true; },
                                 [](std::string_view) -> bool { throw DataError("too much"); }};
  EXPECT_EQ(test::message_of<DataError>([&] { client.get(file_, std::nullopt, receiver); }), "too much");
  EXPECT_EQ(get(client, file_).body, content_);  // the client stays usable
}

// Certificates are checked against trusted ones and against the host name.
TEST_F(HttpTest, TrustsConfiguredCertificates) {
  const test::TempFolder folder;
  server_.set_large(1 << 20);  // without a redirect, which may not leave https
  const std::string hub = server_.endpoint();
  const test::TlsFront front(std::stoi(hub.substr(hub.rfind(':') + 1)), folder / "certificate.pem");
  const std::string path = file_.substr(hub.size());
  {
    HttpClient client({});
    const Got refused = get(client, front.endpoint() + path);
    EXPECT_EQ(refused.result.status, 0);
    EXPECT_TRUE(refused.result.permanent) << refused.result.failure;
    EXPECT_NE(refused.result.failure.find("certificate"), std::string::npos) << refused.result.failure;
  }
  ::setenv("SSL_CERT_FILE", (folder / "certificate.pem").c_str(), 1);
  {
    HttpClient client({"hf_secret", origin_of(front.endpoint()), 5, 5});
    EXPECT_EQ(get(client, front.endpoint() + path).body, content_);
    EXPECT_EQ(server_.requests().back().header("authorization"), "Bearer hf_secret");
    server_.set_large(1000);  // now it redirects to a server without TLS
    const Got redirected = get(client, front.endpoint() + path);
    EXPECT_TRUE(redirected.result.permanent);
    EXPECT_NE(redirected.result.failure.find("not safe to follow"), std::string::npos) << redirected.result.failure;
  }
  {
    HttpClient client({});
    std::string other_name = front.endpoint();
    other_name.replace(other_name.find("127.0.0.1"), 9, "localhost");
    EXPECT_TRUE(get(client, other_name + path).result.permanent);
  }
  ::unsetenv("SSL_CERT_FILE");
}

TEST(Urls, HaveOrigins) {
  EXPECT_EQ(origin_of("https://HuggingFace.co/a?b"), "https://huggingface.co:443");
  EXPECT_EQ(origin_of("http://[::1]:80"), "http://[::1]:80");
  EXPECT_EQ(origin_of("HTTP://host:8080/"), "http://host:8080");
  for (const char* url : {"", "huggingface.co", "file:///etc/passwd", "ftp://host/", "http://"})
    EXPECT_EQ(origin_of(url), "") << url;
  EXPECT_TRUE(is_loopback("http://127.0.0.1:80/x"));
  EXPECT_TRUE(is_loopback("http://localhost"));
  EXPECT_TRUE(is_loopback("http://[::1]/"));
  EXPECT_FALSE(is_loopback("http://127.example.com"));
  EXPECT_FALSE(is_loopback("https://huggingface.co/localhost"));
}

TEST(Urls, AreResolved) {
  EXPECT_EQ(resolve_url("https://a/b/c?d", "/e"), "https://a/e");
  EXPECT_EQ(resolve_url("https://a/b/c?d", "https://f/g"), "https://f/g");
  EXPECT_EQ(resolve_url("https://a/b/c?d", "?cursor=2"), "https://a/b/c?cursor=2");
}

TEST(Redirects, FollowOnlySafeTargets) {
  EXPECT_EQ(redirect_target("https://a/b", "/c"), "https://a/c");
  EXPECT_EQ(redirect_target("https://a/b", "https://cdn/c?x"), "https://cdn/c?x");
  EXPECT_EQ(redirect_target("http://a/b", "https://a/b"), "https://a/b");
  for (const char* unsafe : {"http://a/b", "file:///etc/passwd", "ftp://a/b", "//"})
    EXPECT_EQ(redirect_target("https://a/b", unsafe), "") << unsafe;
}

TEST(Head, KeepsTheLastOfEachName) {
  HttpResult result;
  for (const char* line : {"HTTP/1.1 302 Found\r\n", "X: gone\r\n", "HTTP/1.1 200 OK\r\n", "ETag : \"a\" \r\n",
                           "etag: \"b:c\"\r\n", "no colon\r\n"})
    result.take_header(line);
  EXPECT_EQ(result.headers, (std::map<std::string, std::string>{{"etag", "\"b:c\""}}));
}

// The link to the next page may be in a header of its own, beside other links.
TEST(Head, JoinsLinks) {
  HttpResult result;
  for (const char* line : {"HTTP/1.1 200 OK\r\n", "Link: <a>; rel=\"next\"\r\n", "link: <b>; rel=\"xet-auth\"\r\n"})
    result.take_header(line);
  EXPECT_EQ(result.header("link"), "<a>; rel=\"next\", <b>; rel=\"xet-auth\"");
}

// Like Python's urllib.parse.quote, which huggingface_hub calls.
TEST(Urls, AreEncoded) {
  EXPECT_EQ(percent_encoded("data/a b+ü%.jsonl", true), "data/a%20b%2B%C3%BC%25.jsonl");
  EXPECT_EQ(percent_encoded("refs/pr/1", false), "refs%2Fpr%2F1");
}

HttpResult answered(int status, const std::map<std::string, std::string>& headers = {}) {
  HttpResult result;
  result.status = status;
  result.headers = headers;
  result.url = "https://hub/x";
  return result;
}

TEST(Retries, CoverTransientErrors) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_transient(answered(status))) << status;
  for (const int status : {200, 206, 400, 401, 403, 404, 416, 501}) EXPECT_FALSE(is_transient(answered(status)));
  HttpResult cut = answered(200);
  cut.failure = "it was cut";
  EXPECT_TRUE(is_transient(cut));
  cut.permanent = true;
  EXPECT_FALSE(is_transient(cut));
}

// The signature of a URL may have expired; a refusal by the hub itself is final.
TEST(Retries, CoverRefusedSignedUrls) {
  for (const int status : {400, 401, 403}) {
    HttpResult result;
    result.status = status;
    result.url = "https://cas-bridge.xethub.hf.co/xet-bridge-us/0";
    EXPECT_TRUE(is_transient(result, "https://huggingface.co:443"));
    EXPECT_FALSE(is_transient(result));
    result.url = "https://huggingface.co/datasets/a/b";
    EXPECT_FALSE(is_transient(result, "https://huggingface.co:443"));
  }
}

TEST(Retries, ReadRetryHeaders) {
  EXPECT_EQ(retry_after_seconds(answered(429, {{"retry-after", "7"}})), 7);
  EXPECT_EQ(retry_after_seconds(answered(429, {{"retry-after", "-7"}})), 0);
  EXPECT_EQ(retry_after_seconds(answered(429, {{"retry-after", "1e9"}})), 3600);
  EXPECT_EQ(retry_after_seconds(answered(429, {{"retry-after", "soon"}})), std::nullopt);
  EXPECT_EQ(retry_after_seconds(answered(429, {{"retry-after", "nan"}})), std::nullopt);
  EXPECT_EQ(retry_after_seconds(answered(429)), std::nullopt);
  EXPECT_EQ(retry_after_seconds(answered(429, {{"ratelimit", R"("resolvers";r=0;t=55)"}})), 55);
  EXPECT_EQ(retry_after_seconds(answered(503, {{"ratelimit", R"("resolvers";r=9;t=55)"}})), std::nullopt);
  EXPECT_EQ(retry_after_seconds(answered(503, {{"retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"}})), 0);
  const time_t later = std::time(nullptr) + 100;
  std::string date(64, '\0');
  std::tm utc{};
  date.resize(std::strftime(date.data(), date.size(), "%a, %d %b %Y %H:%M:%S GMT", ::gmtime_r(&later, &utc)));
  EXPECT_NEAR(retry_after_seconds(answered(503, {{"retry-after", date}})).value_or(-1), 100, 5);
}

TEST(Retries, WaitTwiceAsLongEachTimeUpToABound) {
  std::mt19937 random(1);
  const RetryOptions options{8, 1, 60};
  double bound = 1;
  for (int failures = 1; failures < 12; ++failures) {
    const double seconds = wait_seconds(options, failures, answered(503), random);
    EXPECT_GE(seconds, bound / 2);
    EXPECT_LE(seconds, bound);
    bound = std::min(60.0, 2 * bound);
  }
  EXPECT_EQ(wait_seconds(options, 1, answered(429, {{"retry-after", "90"}}), random), 90);
  EXPECT_GE(wait_seconds(options, 1, answered(503, {{"retry-after", "0"}}), random), 0.5)
      << "clients do not retry all at once";
}

TEST(Retries, AreReported) {
  EXPECT_EQ(retry_note(answered(503), 2, 1, {}), "https://hub/x: status 503; retrying in 2 s (1 of 8)");
}

}  // namespace
}  // namespace witan::fetch
