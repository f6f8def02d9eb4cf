#include "witan/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "witan/base/text.h"

namespace witan::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string ApiError::body() const {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  const nlohmann::json error = {{"message", replace_invalid_utf8(what())},
                                {"type", type_of(status_)},
                                {"param", text_or_null(param_)},
                                {"code", text_or_null(code_)}};
  return nlohmann::json{{"error", error}}.dump();
}

}  // namespace witan::serve
