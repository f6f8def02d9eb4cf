// When a request is made again, and after how long.
#pragma once

#include <optional>
#include <random>

#include "witan/fetch/http.h"

namespace witan::fetch {

struct RetryOptions {
  int retries = 8;           // in a row, without a byte in between
  double first_seconds = 1;  // before the first of them; each further one waits twice as long,
  double most_seconds = 60;  // but not longer than this
};

// Whether the same request may succeed later: no whole answer came, or one of 408, 425, 429, 500, 502, 503 and 504; or
// a server that `hub` (an origin) redirected to refuses the address (400, 401, 403), whose signature is of a moment.
bool is_transient(const HttpResult& result, const std::string& hub = "");
bool is_refused_elsewhere(const HttpResult& result, const std::string& hub);

// What the server asks for, at most an hour: Retry-After (RFC 9110, section 10.2.3: seconds, or a date), or the time to
// the next window of the hub's RateLimit header ("resolvers";r=0;t=55, of draft-ietf-httpapi-ratelimit-headers) where
// there were too many requests. Nothing without them.
std::optional<double> retry_after_seconds(const HttpResult& result);

// How long to wait after `failures` >= 1 failures in a row: doubled each time and, so that connections do not come back
// all at once, shortened at random by up to a half; what the server asks for counts where it is longer.
double wait_seconds(const RetryOptions& options, int failures, const HttpResult& result, std::mt19937& random);

// "https://…: 503; again in 2 s (1 of 8)"
std::string retry_note(const HttpResult& result, double seconds, int failures, const RetryOptions& options);

}  // namespace witan::fetch
