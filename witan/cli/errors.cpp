#include "witan/cli/errors.h"

#include <fmt/core.h>

#include <new>
#include <system_error>

#include "witan/base/text.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {
namespace {

// "`witan train`" as "`build/witan train`".
std::string with_program(std::string message, std::string_view program) {
  constexpr std::string_view kCommand = "`witan ";
  for (size_t at = message.find(kCommand); at != std::string::npos;
       at = message.find(kCommand, at + program.size() + 2))
    message.replace(at + 1, kCommand.size() - 2, program);
  return message;
}

ExitCode say(std::FILE* err, ExitCode code, const std::string& message) {
  const bool colour = progress_options(err).colour;
  const char *const red = colour ? "\x1b[1;31m" : "", *const plain = colour ? "\x1b[0m" : "";
  // Unlike fmt::print, fputs does not throw.
  std::fputs(fmt::format("{}witan: error: {}{}\n", red, plain, printable(message)).c_str(), err);
  if (code == ExitCode::internal)
    std::fputs("witan: this is a bug in Witan: please report the command and this message\n", err);
  return code;
}

}  // namespace

ExitCode report_errors(std::FILE* err, const std::function<ExitCode()>& body, std::string_view program) {
  try {
    return body();
  } catch (const Error& e) {
    return say(err, e.code(), with_program(e.what(), program));
  } catch (const std::system_error& e) {  // of the file system, or of an output that takes no more
    const bool full = e.code() == std::errc::no_space_on_device;
    return say(err, full ? ExitCode::disk_full : ExitCode::data, e.what());
  } catch (const std::bad_alloc&) {
    return say(err, ExitCode::out_of_memory,
               "out of memory: close other programs, or make the model, the batch or the text smaller");
  } catch (const std::exception& e) {
    return say(err, ExitCode::internal, e.what());
  } catch (...) {
    return say(err, ExitCode::internal, "unknown error");
  }
}

}  // namespace witan::cli
