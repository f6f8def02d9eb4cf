// The whole program except main(): parses the command line, runs the command, and turns every error into one message on
// `context.err` and an exit code (witan/base/error.h, docs/cli.md).
#pragma once

#include <cstdio>
#include <functional>
#include <string_view>

#include "witan/base/error.h"
#include "witan/cli/command.h"

namespace witan::cli {

int run(int argc, const char* const* argv, Context& context);

// Runs `body` and returns its code. An exception becomes "witan: error: ..." on `err` and the exit code of its class;
// an unexpected failure of a file operation counts as data, or as a full disk. Any other exception is a bug in Witan,
// and the message says so. Commands in messages (`witan train`) are shown as `program` was called.
ExitCode report_errors(std::FILE* err, const std::function<ExitCode()>& body, std::string_view program = "witan");

}  // namespace witan::cli
