#include "witan/train/record/memory_request.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/train/record/memory_file.h"

namespace witan {
namespace {

fs::path request_in(const fs::path& memory) {
  return memory / "request";
}

}  // namespace

void request_snapshot(const fs::path& run) {
  const fs::path memory = run / "memory";
  fs::create_directories(memory);
  // No two requests have the same text.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  write_file_atomically(request_in(memory), cat(now, " ", ::getpid(), "\n"));
}

MemoryRequest::MemoryRequest(const RunFolder& folder, const Arena& arena, int rank)
    : folder_(folder), arena_(arena), rank_(rank), known_(found()) {}

// The text of the request that is there; empty: there is none, or it cannot be read.
std::string MemoryRequest::found() const {
  const fs::path path = request_in(folder_.memory());
  std::error_code error;
  if (!fs::exists(path, error)) return "";
  try {
    return read_file(path);
  } catch (const IoError&) {  // gone again
    return "";
  }
}

void MemoryRequest::before_step(int64_t step) {
  const std::string now = found();
  if (now.empty() || now == known_) return;
  known_ = now;
  asked_ = step;
}

std::optional<fs::path> MemoryRequest::answer() {
  const std::optional<int64_t> step = std::exchange(asked_, std::nullopt);
  if (!step) return std::nullopt;
  const fs::path path = folder_.memory() / cat("step-", *step, "-rank-", rank_, ".json");
  try {
    write_file_atomically(path, live_memory_json(rank_, *step, arena_));
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return path;
}

}  // namespace witan
