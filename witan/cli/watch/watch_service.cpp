#include "witan/cli/watch/watch_service.h"

#include <charconv>
#include <optional>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/serve/access.h"
#include "witan/serve/http_framing.h"

namespace witan::cli {
namespace {

serve::HttpResponse with_headers(int status, std::string body, const char* type) {
  return {.status = status,
          .body = std::move(body),
          .content_type = type,
          .headers = {{"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}}};
}

serve::HttpResponse refusal(int status, const std::string& why) {
  return with_headers(status, why + "\n", "text/plain; charset=utf-8");
}

// The first value of that name; nothing: there is none. Neither secrets nor versions have characters that are escaped.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
  }
  return std::nullopt;
}

// -1, which no page has, where it is no number.
int64_t known_version(std::string_view query) {
  const std::string_view text = query_value(query, "known").value_or("");
  int64_t version = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  return error == std::errc() && end == text.data() + text.size() ? version : -1;
}

// What is small is not worth it.
serve::HttpResponse compressed(serve::HttpResponse response, const serve::HttpRequest& request) {
  constexpr size_t kLeast = 4 << 10;
  if (response.body.size() < kLeast || !serve::accepts_gzip(request.accept_encoding)) return response;
  response.body = serve::gzip(response.body);
  response.headers.emplace_back("Content-Encoding", "gzip");
  return response;
}

}  // namespace

serve::HttpResponse WatchService::answer(const serve::HttpRequest& request) {
  if (const auto why = serve::foreign_request(request)) return refusal(403, *why);
  if (!serve::same_secret(query_value(request.query, "token").value_or(""), secret_))
    return refusal(403, "the address needs its token, as `witan watch` printed it: http://127.0.0.1:PORT/?token=...");
  if (request.path != "/" && request.path != "/update")
    return refusal(404, cat("there is no ", clipped(request.path), ": this server has / and /update"));
  if (request.method != "GET" && request.method != "HEAD") {
    serve::HttpResponse response =
        refusal(405, cat(request.path, " takes GET and HEAD, not ", clipped(request.method)));
    response.allow = "GET, HEAD";
    return response;
  }
  return compressed(request.path == "/"
                        ? with_headers(200, dashboard_.page(), "text/html; charset=utf-8")
                        : with_headers(200, dashboard_.update(known_version(request.query)), "application/json"),
                    request);
}

}  // namespace witan::cli
