// Reads standard input: all of it, or the lines that a user types. On a terminal libedit edits and remembers them; from
// anything else they are read as they are.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace witan::cli {

class LineInput {
 public:
  // `program` names the section of the user's ~/.editrc.
  LineInput(std::FILE* in, std::FILE* out, std::FILE* err, std::string program);
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;

  // Whether input comes from a terminal.
  bool is_terminal() const { return editor_ != nullptr; }
  // The next line without its line feed; nothing at Ctrl-D or the end of the file. `prompt` is shown only on a
  // terminal.
  std::optional<std::string> next(const std::string& prompt);

 private:
  struct Editor;
  std::FILE* in_;
  std::unique_ptr<Editor> editor_;  // null: no terminal
};

// Reads everything to the end. Throws IoError, or DataError beyond 256 MiB.
std::string read_all(std::FILE* in);

}  // namespace witan::cli
