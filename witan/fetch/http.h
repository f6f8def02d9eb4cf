// HTTP GET over libcurl (https://curl.se/libcurl/c/): one connection at a time, kept open between requests.
//
// Redirects are followed here rather than by the library, so that every step is judged: only http and https, never from
// https back to http, and the token goes to the origin that it is meant for and to no other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace witan::fetch {

struct ByteRange {  // [begin, end)
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
};

struct HttpOptions {
  std::string token;         // sent as "Authorization: Bearer"; empty: none
  std::string token_origin;  // an origin, as origin_of() writes it
  double connect_seconds = 15;
  double stall_seconds = 30;  // a connection over which nothing comes for so long is given up
};

// What came of a request.
struct HttpResult {
  int status = 0;  // of the last answer; 0: none came
  // The last answer's headers, names in lower case, with the headers of earlier redirects that describe their target
  // (X-Linked-Size, X-Linked-Etag).
  std::map<std::string, std::string> headers;
  std::string url;         // asked last, without its query, which may hold a signature
  std::string failure;     // why the answer did not come whole; empty: it did
  bool permanent = false;  // with a failure: asking again does not help
  bool stopped = false;    // the receiver wanted no more
  std::string said;        // the beginning of an answer that is neither 200 nor 206

  std::string header(const std::string& name) const;
  // A line of an answer's head. Of a name that comes twice the last value counts, but for lists (Link), whose items are
  // joined; very many names are passed over.
  void take_header(std::string_view line);
};

// Takes the body of an answer of status 200 or 206. Each returns false for no more; what they throw, get() throws.
struct HttpReceiver {
  std::function<bool(const HttpResult& head)> begin;
  std::function<bool(std::string_view bytes)> write;
};

// One request at a time; a thread has a client of its own. Throws IoError where the library does not work.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Asks for the whole body, or for a range of its bytes, which a server may ignore (status 200).
  HttpResult get(const std::string& url, const std::optional<ByteRange>& range, const HttpReceiver& receiver);

 private:
  struct Transfer;
  HttpResult get_once(const std::string& url, const std::optional<ByteRange>& range, const HttpReceiver& receiver,
                      const std::map<std::string, std::string>& linked, std::string* redirect);

  HttpOptions options_;
  void* curl_;  // CURL*
};

// "https://huggingface.co:443": scheme, host in lower case and port; "" of what is no URL of http or https.
std::string origin_of(const std::string& url);
// Whether the host of a URL is this machine itself.
bool is_loopback(const std::string& url);
// `url` as seen from `base`: an absolute one stays itself.
std::string resolve_url(const std::string& base, const std::string& url);
// Where a redirect of `url` leads to; "" where it is not safe to follow: to what is no URL of http or https, or from
// https back to http.
std::string redirect_target(const std::string& url, const std::string& location);
// Everything but letters, digits and "-._~" as %XX (RFC 3986), and "/" where it is kept.
std::string percent_encoded(std::string_view text, bool keep_slashes);

}  // namespace witan::fetch
