// The whole program except main(): parses the command line, runs the command, and turns every error into one message on
// `context.err` and an exit code (witan/base/error.h, docs/cli.md).
#pragma once

#include "witan/cli/command.h"

namespace witan::cli {

int run(int argc, const char* const* argv, Context& context);

}  // namespace witan::cli
