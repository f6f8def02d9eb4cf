// What every command is made of: one file with a function that registers it (commands.h).
//
// stdout carries data, stderr carries talk: `witan generate x > text` writes the text alone.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "witan/base/error.h"

namespace CLI {
class App;
}

namespace witan::cli {

struct MegatronLine;  // megatron.h

// Where a command reads and writes. Tests put memory streams here.
struct Context {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;
  ExitCode code = ExitCode::done;                          // what the command that ran returned
  std::string program = "witan";                           // as it was called, for commands that a message suggests
  std::shared_ptr<const MegatronLine> megatron = nullptr;  // what the command line says in Megatron-LM's words
};

// What becomes of a command where a launcher starts several processes of it.
enum class Processes : uint8_t {
  first,     // rank 0 does it; the others have nothing to do
  together,  // they do it together
  one,       // it is refused: what one of them finds would not be what was asked for
};

struct CommandText {
  std::string name;
  std::string summary;   // one line, in the list of commands
  std::string details;   // more lines, in the command's own help; may be empty
  std::string examples;  // lines, shown last in the command's own help; may be empty
  Processes processes = Processes::first;
};

// Adds a command to `app`, or to another command. `action` runs after the whole command line is parsed; its errors are
// mapped to messages and exit codes by run().
CLI::App* add_command(CLI::App& app, Context& context, const CommandText& text, std::function<ExitCode()> action);
// A command that only groups others: `witan tokenizer train`. One of them must be named.
CLI::App* add_group(CLI::App& app, const CommandText& text);

}  // namespace witan::cli
