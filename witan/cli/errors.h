// Every error as one message and one exit code.
#pragma once

#include <cstdio>
#include <functional>
#include <string_view>

#include "witan/base/error.h"

namespace witan::cli {

// Runs `body` and returns its code. What it throws becomes "witan: error: ..." on `err` and the exit code of its class;
// a failed file operation that nobody named counts as data, or as a full disk. What is none of these is a bug in Witan,
// and the message says so. Commands that a message suggests (`witan train`) are shown as `program` was called.
ExitCode report_errors(std::FILE* err, const std::function<ExitCode()>& body, std::string_view program = "witan");

}  // namespace witan::cli
