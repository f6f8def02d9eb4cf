// Errors and exit codes. An error says what is wrong, where, why, and the way out; its class says whose fault it is.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace witan {

// The exit code of the process. The numbers are part of the command line's contract (docs/cli.md): never reuse one.
enum class ExitCode : int {
  done = 0,
  internal = 1,
  usage = 2,
  config = 3,
  data = 4,
  checkpoint = 5,
  diverged = 6,
  rank_lost = 7,
  out_of_memory = 8,
  disk_full = 9,
  device = 10,
  preempted = 75,
  interrupted = 130,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// WITAN_ERROR(Name, base, code): a class that is constructed from its message alone.
#define WITAN_ERROR(Name, exit_code)                                         \
  class Name : public Error {                                                \
   public:                                                                   \
    explicit Name(const std::string& message) : Error(exit_code, message) {} \
  };
WITAN_ERROR(UsageError, ExitCode::usage)            // the command line
WITAN_ERROR(ConfigError, ExitCode::config)          // a key, a size, a combination of them
WITAN_ERROR(ShapeError, ExitCode::internal)         // a caller in C++ passed shapes or dtypes that do not fit
WITAN_ERROR(DataError, ExitCode::data)              // text, tokenizers, token shards
WITAN_ERROR(CheckpointError, ExitCode::checkpoint)  // a checkpoint is missing, damaged or of another model
WITAN_ERROR(DivergedError, ExitCode::diverged)      // the loss stayed non-finite
WITAN_ERROR(CommError, ExitCode::rank_lost)         // a rank is lost, late, or calls another collective
WITAN_ERROR(OutOfMemoryError, ExitCode::out_of_memory)
WITAN_ERROR(DiskFullError, ExitCode::disk_full)
WITAN_ERROR(DeviceError, ExitCode::device)
#undef WITAN_ERROR

// A file that cannot be opened, read or written. Callers that know what the file is catch it and say so.
class IoError : public Error {
 public:
  explicit IoError(const std::string& message, ExitCode code = ExitCode::data) : Error(code, message) {}
};

// A file whose bytes are not what its format asks for. The message names file, offset and what was expected.
class CorruptionError : public Error {
 public:
  explicit CorruptionError(const std::string& message, ExitCode code = ExitCode::data) : Error(code, message) {}
};

// A piece of a message, written as a stream writes it. What strings are made of is compiled once, in error.cpp:
// messages stand in every source, and a stream of their own in each would take a third of the time to compile it.
class MessagePiece {
 public:
  constexpr MessagePiece(std::string_view text) : text_(text) {}  // NOLINT: pieces are made of whatever a message names
  MessagePiece(const std::string& text) : text_(text) {}          // NOLINT
  constexpr MessagePiece(const char* text) : text_(text) {}       // NOLINT
  constexpr MessagePiece(char letter) : kind_(Kind::letter), integer_(letter) {}  // NOLINT
  constexpr MessagePiece(double number) : kind_(Kind::real), real_(number) {}     // NOLINT
  template <std::integral T>
  constexpr MessagePiece(T number)  // NOLINT
      : kind_(std::is_signed_v<T> ? Kind::integer : Kind::natural), integer_(static_cast<int64_t>(number)) {}
  // Whatever else has an operator<<.
  template <class T>
  requires requires(std::ostream& out, const T& value) {
    out << value;
  } &&(!std::integral<T>)&&(!std::floating_point<T>)&&(
      !std::convertible_to<const T&, std::string_view>)constexpr MessagePiece(const T& value)  // NOLINT
      : kind_(Kind::value),
        value_(&value),
        write_([](std::ostream& out, const void* what) { out << *static_cast<const T*>(what); }) {
  }

 private:
  friend std::string join_message(std::initializer_list<MessagePiece> pieces);
  enum class Kind : uint8_t { text, letter, integer, natural, real, value };
  Kind kind_ = Kind::text;
  union {
    std::string_view text_;
    int64_t integer_;
    double real_;
    const void* value_;
  };
  void (*write_)(std::ostream&, const void*) = nullptr;
};
std::string join_message(std::initializer_list<MessagePiece> pieces);

// cat("w must be [D=", d, "]"): the pieces in one string.
template <class... Pieces>
std::string cat(const Pieces&... pieces) {
  return join_message({MessagePiece(pieces)...});
}

// require<ShapeError>(condition, pieces...): throws E with the pieces as its message unless the condition holds.
template <class E, class... Pieces>
void require(bool condition, const Pieces&... pieces) {
  if (!condition) [[unlikely]]
    throw E(join_message({MessagePiece(pieces)...}));
}

}  // namespace witan
