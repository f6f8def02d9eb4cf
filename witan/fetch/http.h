// HTTP GET over libcurl (https://curl.se/libcurl/c/): one connection at a time, kept open between requests.
//
// Redirects are followed here rather than by libcurl, so that each step is checked: only http and https, never from
// https to http, and the token is sent to its own origin only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>

namespace witan::fetch {

struct ByteRange {  // [begin, end)
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
};

struct HttpOptions {
  std::string token;         // sent as "Authorization: Bearer"; empty: none
  std::string token_origin;  // as origin_of() returns it
  double connect_seconds = 15;
  double stall_seconds = 30;  // gives up a connection that receives nothing for this long
};

// The outcome of a request.
struct HttpResult {
  int status = 0;  // of the last response; 0: there was none
  // The last response's headers, with names in lower case, and those headers of earlier redirects that describe the
  // target (X-Linked-Size, X-Linked-Etag).
  std::map<std::string, std::string> headers;
  std::string url;         // of the last request, without its query, which may contain a signature
  std::string failure;     // why the response is incomplete; empty: it is complete
  bool permanent = false;  // with a failure: a retry cannot help
  bool stopped = false;    // the receiver ended the transfer
  std::string said;        // the beginning of the body if the status is neither 200 nor 206

  std::string header(const std::string& name) const;
  // Adds a line of the response's head. The last value of a repeated name counts, except for lists (Link), whose items
  // are joined. Names beyond a limit are ignored.
  void take_header(std::string_view line);
};

// Receives the body of a response of status 200 or 206. Returning false ends the transfer; get() rethrows exceptions.
struct HttpReceiver {
  std::function<bool(const HttpResult& head)> begin;
  std::function<bool(std::string_view bytes)> write;
};

// Sends one request at a time; each thread needs its own client. Throws IoError if libcurl cannot be used.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Requests the whole body, or a range of its bytes, which a server may ignore (status 200).
  HttpResult get(const std::string& url, const std::optional<ByteRange>& range, const HttpReceiver& receiver);

 private:
  struct Transfer;
  void renew();  // gets libcurl's state anew
  HttpResult get_once(const std::string& url, const std::optional<ByteRange>& range, const HttpReceiver& receiver,
                      const std::map<std::string, std::string>& linked, std::string* redirect);

  HttpOptions options_;
  void* curl_;  // CURL*
};

// Scheme, lower-case host and port, such as "https://huggingface.co:443"; "" if `url` is not an http or https URL.
std::string origin_of(const std::string& url);
// Whether the host of a URL is this machine.
bool is_loopback(const std::string& url);
// Resolves `url` relative to `base`; an absolute URL stays as it is.
std::string resolve_url(const std::string& base, const std::string& url);
// The target of a redirect of `url`; "" if it is unsafe to follow: not an http or https URL, or from https to http.
std::string redirect_target(const std::string& url, const std::string& location);
// Percent-encodes everything except letters, digits and "-._~" (RFC 3986), and "/" if `keep_slashes`.
std::string percent_encoded(std::string_view text, bool keep_slashes);

// When a request is retried, and after how long.
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
