#include "witan/cli/errors.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>

namespace witan::cli {
namespace {

ExitCode say(std::FILE* err, ExitCode code, const std::string& message) {
  fmt::print(err, "witan: error: {}\n", message);
  if (code == ExitCode::internal)
    fmt::print(err,
               "witan: this is a bug in Witan, not a fault of yours: please report the command and this message\n");
  return code;
}

}  // namespace

ExitCode report_errors(std::FILE* err, const std::function<ExitCode()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    return say(err, e.code(), e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    const bool full = e.code() == std::errc::no_space_on_device;
    return say(err, full ? ExitCode::disk_full : ExitCode::data, e.what());
  } catch (const std::bad_alloc&) {
    return say(err, ExitCode::out_of_memory,
               "out of memory: close other programs, or make the model, the batch or the text smaller");
  } catch (const std::exception& e) {
    return say(err, ExitCode::internal, e.what());
  } catch (...) {
    return say(err, ExitCode::internal, "an unknown error");
  }
}

}  // namespace witan::cli
