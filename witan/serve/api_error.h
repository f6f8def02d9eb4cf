// The error of a refused request in the form of OpenAI's API: an HTTP status and a JSON object with message, type,
// param and code (platform.openai.com/docs/guides/error-codes).
#pragma once

#include <stdexcept>
#include <string>

namespace witan::serve {

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

}  // namespace witan::serve
