// Reads the members of a request's JSON object by name and type, refuses members that were not read, and describes the
// errors of refused requests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/chat/value.h"

namespace witan::serve {

// The error of a refused request in the form of OpenAI's API: an HTTP status and a JSON object with message, type,
// param and code (platform.openai.com/docs/guides/error-codes).
class ApiError : public std::runtime_error {
 public:
  // `param` names the offending member of the request, `code` is a machine-readable word; either may be empty.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  // {"error": {"message": …, "type": …, "param": …, "code": …}}
  std::string body() const;

 private:
  int status_;
  std::string param_, code_;
};

class RequestMembers {
 public:
  // The body must outlive it. Throws ApiError (400) unless it is one JSON object.
  explicit RequestMembers(std::string_view body);

  // Each throws ApiError (400) naming the member for a wrong type or a value out of bounds. Null counts as absent.
  std::optional<double> number(const char* name, double least, double most);
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> text(const char* name);
  const nlohmann::json* any(const char* name);  // nullptr: absent
  // The member as chat templates see it, with keys in order and integers of any size; undefined: absent.
  jinja::Value for_template(const char* name);
  // Accepts a member only with one of these values, which have no effect; `why` explains the refusal of others.
  void neutral(const char* name, const std::vector<nlohmann::json>& values, const char* why);
  void ignore(const char* name) { any(name); }
  // Throws ApiError (400) for the first member that was not read.
  void finish() const;

 private:
  std::string_view body_;
  nlohmann::json json_;
  jinja::Value exact_;  // the whole body, parsed on demand
  std::set<std::string, std::less<>> read_;
};

}  // namespace witan::serve
