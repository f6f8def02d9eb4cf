#include "witan/serve/request_members.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
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

namespace {

nlohmann::json parse_body(std::string_view body) {
  try {
    nlohmann::json parsed = parse_json(body, "the request's body", 32);
    if (!parsed.is_object())
      throw ApiError(400, cat("the request's body must be a JSON object, but is ", parsed.type_name()), {},
                     "invalid_json");
    return parsed;
  } catch (const CorruptionError& error) {
    throw ApiError(400, error.what(), {}, "invalid_json");
  }
}

// Shortens a value for a message.
std::string shown(const nlohmann::json& value) {
  return clipped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

[[noreturn]] void refuse(const char* name, const nlohmann::json& value, const std::string& wanted) {
  throw ApiError(400, cat(name, " is ", shown(value), ", but it must be ", wanted), name, "invalid_value");
}

}  // namespace

RequestMembers::RequestMembers(std::string_view body) : body_(body), json_(parse_body(body)) {}

const nlohmann::json* RequestMembers::any(const char* name) {
  read_.insert(name);
  const auto at = json_.find(name);
  return at == json_.end() || at->is_null() ? nullptr : &*at;
}

jinja::Value RequestMembers::for_template(const char* name) {
  if (!any(name)) return {};
  if (exact_.is_undefined()) exact_ = jinja::from_json(body_, "the request's body");
  return *jinja::find(*exact_.entries(), name);
}

std::optional<double> RequestMembers::number(const char* name, double least, double most) {
  const nlohmann::json* value = any(name);
  if (!value) return {};
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
    refuse(name, *value, cat("a number from ", least, " to ", most));
  return value->get<double>();
}

std::optional<int64_t> RequestMembers::integer(const char* name, int64_t least, int64_t most) {
  const nlohmann::json* value = any(name);
  if (!value) return {};
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most)
    refuse(name, *value, cat("an integer from ", least, " to ", most));
  return value->get<int64_t>();
}

std::optional<bool> RequestMembers::boolean(const char* name) {
  const nlohmann::json* value = any(name);
  if (!value) return {};
  if (!value->is_boolean()) refuse(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> RequestMembers::text(const char* name) {
  const nlohmann::json* value = any(name);
  if (!value) return {};
  if (!value->is_string()) refuse(name, *value, "a string");
  return value->get<std::string>();
}

void RequestMembers::neutral(const char* name, const std::vector<nlohmann::json>& values, const char* why) {
  const nlohmann::json* value = any(name);
  if (value && std::ranges::find(values, *value) == values.end())
    throw ApiError(400, cat(name, " = ", shown(*value), " is not supported: ", why), name, "unsupported_value");
}

void RequestMembers::finish() const {
  for (const auto& [name, value] : json_.items())
    if (!read_.contains(name))
      throw ApiError(400, cat("unknown member of the request: ", clipped(name)), clipped(name), "unknown_parameter");
}

}  // namespace witan::serve
