#include "witan/fetch/retry.h"

#include <gtest/gtest.h>

#include <ctime>

namespace witan::fetch {
namespace {

HttpResult answered(int status, const std::map<std::string, std::string>& headers = {}) {
  HttpResult result;
  result.status = status;
  result.headers = headers;
  result.url = "https://hub/x";
  return result;
}

TEST(Retries, AreForWhatMayPass) {
  for (const int status : {408, 429, 500, 502, 503, 504}) EXPECT_TRUE(is_transient(answered(status))) << status;
  for (const int status : {200, 206, 400, 401, 403, 404, 416, 501}) EXPECT_FALSE(is_transient(answered(status)));
  HttpResult cut = answered(200);
  cut.failure = "it was cut";
  EXPECT_TRUE(is_transient(cut));
  cut.permanent = true;
  EXPECT_FALSE(is_transient(cut));
}

// A signature of an address may have run out on the way; what the hub itself refuses, it refuses again.
TEST(Retries, AreForSignedAddressesThatAreRefused) {
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

TEST(Retries, ReadWhatTheServerAsksFor) {
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
  EXPECT_GE(wait_seconds(options, 1, answered(503, {{"retry-after", "0"}}), random), 0.5) << "not all at once";
}

TEST(Retries, AreTold) {
  EXPECT_EQ(retry_note(answered(503), 2, 1, {}), "https://hub/x: status 503; retrying in 2 s (1 of 8)");
}

}  // namespace
}  // namespace witan::fetch
