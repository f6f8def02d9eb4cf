#include "witan/serve/access.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <openssl/crypto.h>
#include <sys/random.h>

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::serve {
namespace {

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; });
  return text;
}

std::string without_port(const std::string& host) {
  const size_t colon = host.rfind(':');
  std::string own =
      colon != std::string::npos && host.find(']', colon) == std::string::npos ? host.substr(0, colon) : host;
  if (own.ends_with('.')) own.pop_back();  // the root of all names
  return own;
}

bool is_own(const std::string& host, const std::string& name) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) return (ntohl(address.s_addr) >> 24) == 127;
  return host == "localhost" || host == "[::1]" || (!name.empty() && host == lower_case(name));
}

}  // namespace

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string new_secret() {
  unsigned char bytes[16];
  require<IoError>(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "the system gives no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<std::string> foreign_request(const HttpRequest& request, const std::string& name) {
  const std::string host = lower_case(request.host);
  if (host.empty()) return "without a key this server needs the name it is called by: send a Host line";
  if (!is_own(without_port(host), name))
    return cat("this server answers to 127.0.0.1 and localhost, not to the host name ", clipped(request.host));
  if (!request.origin.empty() && lower_case(request.origin) != "http://" + host)
    return "pages of other sites may not use this server";
  return {};
}

}  // namespace witan::serve
