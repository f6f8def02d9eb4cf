#include "witan/fetch/http.h"

#include <curl/curl.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <mutex>
#include <regex>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::fetch {
namespace {

constexpr int kMostRedirects = 10;
constexpr size_t kMostSaid = 4096;
constexpr size_t kMostHeaders = 200;
constexpr size_t kMostJoined = 8192;

void initialise_library() {
  static std::once_flag once;
  static CURLcode code = CURLE_OK;
  std::call_once(once, [] { code = ::curl_global_init(CURL_GLOBAL_DEFAULT); });
  require<IoError>(code == CURLE_OK, "libcurl cannot be used: ", ::curl_easy_strerror(code));
}

template <class T>
void set_option(void* curl, CURLoption option, T value) {
  const CURLcode code = ::curl_easy_setopt(curl, option, value);
  require<IoError>(code == CURLE_OK, "libcurl does not take an option: ", ::curl_easy_strerror(code));
}

// A parsed URL.
class ParsedUrl {
 public:
  explicit ParsedUrl(const std::string& url) : handle_(::curl_url()) {
    valid_ = handle_ != nullptr && ::curl_url_set(handle_, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK;
  }
  ~ParsedUrl() { ::curl_url_cleanup(handle_); }
  ParsedUrl(const ParsedUrl&) = delete;
  ParsedUrl& operator=(const ParsedUrl&) = delete;

  bool valid() const { return valid_; }
  bool set(CURLUPart part, const char* value) {
    return ::curl_url_set(handle_, part, value, CURLU_URLENCODE) ==
           CURLUE_OK;  // encodes blanks, which some servers send
  }
  std::string get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (!valid_ || ::curl_url_get(handle_, part, &text, flags) != CURLUE_OK) return "";
    std::string copy = text;
    ::curl_free(text);
    return copy;
  }

 private:
  CURLU* handle_;
  bool valid_ = false;
};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string without_query(const std::string& url) {
  return url.substr(0, url.find_first_of("?#"));
}

// A file of certificates besides the system's, from the variables that other clients of the hub use.
const char* certificate_file() {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"})
    if (const char* file = std::getenv(name); file != nullptr && *file != '\0') return file;
  return nullptr;
}

bool is_permanent(CURLcode code) {
  static constexpr std::array kCodes = {CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT, CURLE_PEER_FAILED_VERIFICATION,
                                        CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CERTPROBLEM};
  return std::ranges::find(kCodes, code) != kCodes.end();
}

// While in scope, writing to a connection that the peer has closed is an error instead of a SIGPIPE, which TLS
// libraries would cause. Blocks the signal in this thread only, unlike libcurl's own handling.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now{};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::string HttpResult::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

void HttpResult::take_header(std::string_view line) {
  if (line.starts_with("HTTP/")) {  // the head of a further response, as after "100 Continue"
    headers.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || headers.size() >= kMostHeaders) return;
  const std::string name = lower_case(std::string(trimmed(line.substr(0, colon))));
  std::string& value = headers[name];
  const bool joined = name == "link" && !value.empty() && value.size() < kMostJoined;
  value = joined ? cat(value, ", ", trimmed(line.substr(colon + 1))) : std::string(trimmed(line.substr(colon + 1)));
}

// The state of one request, for libcurl's callbacks.
struct HttpClient::Transfer {
  void* curl;
  const HttpReceiver& receiver;
  const std::map<std::string, std::string>& linked;  // headers of earlier redirects that describe the file
  HttpResult result;
  bool begun = false;
  std::exception_ptr thrown;

  bool wants_body() const { return result.status == 200 || result.status == 206; }

  // Announces the response to the receiver, before its body or if that is empty.
  bool begin() {
    if (begun) return true;
    begun = true;
    long status = 0;
    ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    result.status = static_cast<int>(status);
    result.headers.insert(linked.begin(), linked.end());
    return !wants_body() || receiver.begin(result);
  }

  bool take_body(std::string_view bytes) {
    if (!begin()) return false;
    if (wants_body()) return receiver.write(bytes);
    result.said += bytes.substr(0, kMostSaid - std::min(kMostSaid, result.said.size()));
    return result.said.size() < kMostSaid;
  }

  // Exceptions must not pass through libcurl.
  template <class Action>
  bool guarded(Action&& action) {
    try {
      if (action()) return true;
      result.stopped = true;
    } catch (...) {
      thrown = std::current_exception();
    }
    return false;
  }

  static size_t on_header(char* data, size_t, size_t bytes, void* self) {
    static_cast<Transfer*>(self)->result.take_header({data, bytes});
    return bytes;
  }
  static size_t on_body(char* data, size_t, size_t bytes, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.guarded([&] { return transfer.take_body({data, bytes}); }) ? bytes : 0;
  }
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)), curl_(nullptr) {
  initialise_library();
  renew();
}

HttpClient::~HttpClient() {
  const NoPipeSignal quiet;  // TLS sends a closing message
  ::curl_easy_cleanup(curl_);
}

void HttpClient::renew() {
  const NoPipeSignal quiet;
  ::curl_easy_cleanup(std::exchange(curl_, ::curl_easy_init()));
  require<IoError>(curl_ != nullptr, "libcurl has no memory for a connection");
}

HttpResult HttpClient::get_once(const std::string& url, const std::optional<ByteRange>& range,
                                const HttpReceiver& receiver, const std::map<std::string, std::string>& linked,
                                std::string* redirect) {
  ::curl_easy_reset(curl_);  // keeps open connections
  Transfer transfer{curl_, receiver, linked, {}, false, nullptr};
  transfer.result.url = without_query(url);
  std::array<char, CURL_ERROR_SIZE> reason{};
  set_option(curl_, CURLOPT_ERRORBUFFER, reason.data());
  set_option(curl_, CURLOPT_URL, url.c_str());
  set_option(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
  set_option(curl_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // uses TCP's flow control
  set_option(curl_, CURLOPT_NOSIGNAL, 1L);
  set_option(curl_, CURLOPT_USERAGENT, "witan");
  set_option(curl_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_seconds * 1e3));
  set_option(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set_option(curl_, CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(options_.stall_seconds)));
  set_option(curl_, CURLOPT_BUFFERSIZE, 256L << 10);
  set_option(curl_, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  set_option(curl_, CURLOPT_HEADERDATA, &transfer);
  set_option(curl_, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  set_option(curl_, CURLOPT_WRITEDATA, &transfer);
  if (const char* certificates = certificate_file()) set_option(curl_, CURLOPT_CAINFO, certificates);
  const std::string bytes = range ? cat(range->begin, "-", range->end - 1) : "";
  if (range) set_option(curl_, CURLOPT_RANGE, bytes.c_str());
  const bool trusted = !options_.token.empty() && origin_of(url) == options_.token_origin;
  if (trusted) {
    set_option(curl_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set_option(curl_, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  }
  const CURLcode code = [&] {
    const NoPipeSignal quiet;
    return ::curl_easy_perform(curl_);
  }();
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (code == CURLE_OK && !transfer.guarded([&] { return transfer.begin(); }) && transfer.thrown)
    std::rethrow_exception(transfer.thrown);
  HttpResult& result = transfer.result;
  if (code != CURLE_OK && !result.stopped) {
    result.failure = reason.front() != '\0' ? reason.data() : ::curl_easy_strerror(code);
    result.permanent = is_permanent(code);
    // After a name that it could not resolve, libcurl 7.88 refuses options of the next transfer.
    renew();
  }
  if (result.failure.empty() && is_redirect(result.status)) *redirect = result.header("location");
  return std::move(result);
}

HttpResult HttpClient::get(const std::string& url, const std::optional<ByteRange>& range,
                           const HttpReceiver& receiver) {
  std::string at = url;
  std::map<std::string, std::string> linked;
  for (int steps = 0; steps <= kMostRedirects; ++steps) {
    std::string redirect;
    HttpResult result = get_once(at, range, receiver, linked, &redirect);
    for (const auto& [name, value] : result.headers)
      if (name.starts_with("x-linked-")) linked[name] = value;
    if (redirect.empty()) return result;
    const std::string target = redirect_target(at, redirect);
    if (target.empty()) {
      result.failure = cat("it redirects to ", without_query(resolve_url(at, redirect)),
                           ", which is not safe to follow from ", origin_of(at));
      result.permanent = true;
      return result;
    }
    at = target;
  }
  HttpResult result;
  result.url = without_query(at);
  result.failure = cat("it redirects more than ", kMostRedirects, " times");
  result.permanent = true;
  return result;
}

std::string origin_of(const std::string& url) {
  const ParsedUrl parsed(url);
  const std::string scheme = lower_case(parsed.get(CURLUPART_SCHEME));
  if (scheme != "http" && scheme != "https") return "";
  return scheme + "://" + lower_case(parsed.get(CURLUPART_HOST)) + ":" + parsed.get(CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

bool is_loopback(const std::string& url) {
  const std::string host = lower_case(ParsedUrl(url).get(CURLUPART_HOST));
  const bool of_127 = host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "[::1]" || of_127;
}

std::string resolve_url(const std::string& base, const std::string& url) {
  ParsedUrl parsed(base);
  return parsed.valid() && parsed.set(CURLUPART_URL, url.c_str()) ? parsed.get(CURLUPART_URL) : "";
}

std::string redirect_target(const std::string& url, const std::string& location) {
  const std::string target = resolve_url(url, location), origin = origin_of(target);
  const bool unsafe = origin.empty() || (origin_of(url).starts_with("https:") && !origin.starts_with("https:"));
  return unsafe ? "" : target;
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool alphanumeric = byte < 128 && std::isalnum(byte) != 0;
    if (alphanumeric || std::string_view("-._~").find(letter) != std::string_view::npos ||
        (keep_slashes && letter == '/'))
      out += letter;
    else
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

bool is_refused_elsewhere(const HttpResult& result, const std::string& hub) {
  const bool refused = result.status == 400 || result.status == 401 || result.status == 403;
  return refused && result.failure.empty() && !hub.empty() && origin_of(result.url) != hub;
}

bool is_transient(const HttpResult& result, const std::string& hub) {
  static constexpr std::array kStatuses = {408, 425, 429, 500, 502, 503, 504};
  if (!result.failure.empty()) return !result.permanent;
  if (is_refused_elsewhere(result, hub)) return true;
  return std::ranges::find(kStatuses, result.status) != kStatuses.end();
}

std::optional<double> retry_after_seconds(const HttpResult& result) {
  constexpr double kMostSeconds = 3600;
  std::string text = result.header("retry-after");
  if (text.empty() && result.status == 429) {
    static const std::regex window(R"(;\s*t\s*=\s*(\d+))");
    std::smatch match;
    const std::string limit = result.header("ratelimit");
    if (limit.size() < 1024 && std::regex_search(limit, match, window)) text = match[1].str();
  }
  if (text.empty()) return std::nullopt;
  double seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    const time_t date = ::curl_getdate(text.c_str(), nullptr);
    if (date == -1) return std::nullopt;
    seconds = static_cast<double>(date - std::time(nullptr));
  }
  if (!std::isfinite(seconds)) return std::nullopt;
  return std::clamp(seconds, 0.0, kMostSeconds);
}

double wait_seconds(const RetryOptions& options, int failures, const HttpResult& result, std::mt19937& random) {
  const double doubled = std::min(options.most_seconds, options.first_seconds * std::exp2(std::min(failures - 1, 30)));
  const double shortened = doubled * std::uniform_real_distribution<double>(0.5, 1)(random);
  return std::max(shortened, retry_after_seconds(result).value_or(0));
}

std::string retry_note(const HttpResult& result, double seconds, int failures, const RetryOptions& options) {
  return cat(result.url, ": ", result.failure.empty() ? cat("status ", result.status) : result.failure,
             "; retrying in ", format_duration(seconds), " (", failures, " of ", options.retries, ")");
}

}  // namespace witan::fetch
