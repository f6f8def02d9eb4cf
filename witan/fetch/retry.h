// When a request is retried, and after how long.
#pragma once

#include <optional>
#include <random>

#include "witan/fetch/http.h"

namespace witan::fetch {

struct RetryOptions {
  int retries = 8;           // consecutive, without a byte received in between
  double first_seconds = 1;  // wait before the first retry; doubled for each further one,
  double most_seconds = 60;  // up to this
};

// Whether the same request may succeed later: the response is incomplete; its status is 408, 425, 429, 500, 502, 503 or
// 504; or a server to which `hub` (an origin) redirected refuses the URL (400, 401, 403), whose signature expires.
bool is_transient(const HttpResult& result, const std::string& hub = "");
bool is_refused_elsewhere(const HttpResult& result, const std::string& hub);

// The wait that the server asks for, at most an hour: Retry-After (RFC 9110, section 10.2.3: seconds or a date) or,
// after too many requests, the time to the next window in the hub's RateLimit header ("resolvers";r=0;t=55, see
// draft-ietf-httpapi-ratelimit-headers). nullopt without these headers.
std::optional<double> retry_after_seconds(const HttpResult& result);

// How long to wait after `failures` >= 1 consecutive failures: exponential backoff, shortened at random by up to a half
// so that connections do not return all at once, but at least the wait that the server asks for.
double wait_seconds(const RetryOptions& options, int failures, const HttpResult& result, std::mt19937& random);

// "https://…: status 503; retrying in 2 s (1 of 8)"
std::string retry_note(const HttpResult& result, double seconds, int failures, const RetryOptions& options);

}  // namespace witan::fetch
