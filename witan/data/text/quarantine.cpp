#include "witan/data/text/quarantine.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"

namespace witan {

OutputFile quarantine_file(fs::path path) {
  return {std::move(path), "the list of unusable rows,", "list", [](std::string_view bytes) {
            return begins_with_json(bytes, {"source", "line", "reason", "row"});
          }};
}

Quarantine::Quarantine(fs::path path, QuarantineLimits limits, QuarantineState before)
    : path_(std::move(path)), limits_(limits), state_(std::move(before)) {}

void Quarantine::add(const fs::path& source, int64_t line, std::string_view reason, std::string_view row) {
  if (state_.count++ == 0) state_.first = cat(source.string(), ":", line, ": ", reason);
  if (path_.empty() || state_.kept >= limits_.rows) return;
  const nlohmann::ordered_json entry = {{"source", replace_invalid_utf8(source.string())},
                                        {"line", line},
                                        {"reason", replace_invalid_utf8(reason)},
                                        {"row", replace_invalid_utf8(row.substr(0, limits_.row_bytes))}};
  const std::string text = entry.dump() + "\n";
  std::string rows = state_.rows ? *state_.rows : std::string();  // a copy: who holds the state keeps it as it was
  if (rows.size() + text.size() > limits_.bytes) return;
  state_.rows = std::make_shared<const std::string>(std::move(rows += text));
  ++state_.kept;
}

void Quarantine::close() {
  if (path_.empty()) return;
  if (state_.rows) {
    create_folders(path_.parent_path());
    write_file_atomically(path_, *state_.rows);
  } else if (state_.count == 0) {
    std::error_code ignored;  // absent, as it should be
    fs::remove(path_, ignored);
  }
}

}  // namespace witan
