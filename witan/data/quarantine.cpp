#include "witan/data/quarantine.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

Quarantine::Quarantine(fs::path path, QuarantineLimits limits) : path_(std::move(path)), limits_(limits) {}
Quarantine::~Quarantine() = default;

void Quarantine::add(const fs::path& source, int64_t line, std::string_view reason, std::string_view row) {
  if (count_++ == 0) first_ = cat(source.string(), ":", line, ": ", reason);
  if (path_.empty() || kept_ >= limits_.rows) return;
  const nlohmann::ordered_json entry = {{"source", replace_invalid_utf8(source.string())},
                                        {"line", line},
                                        {"reason", replace_invalid_utf8(reason)},
                                        {"row", replace_invalid_utf8(row.substr(0, limits_.row_bytes))}};
  const std::string text = entry.dump() + "\n";
  if ((file_ ? file_->written() : 0) + text.size() > limits_.bytes) return;
  if (!file_) {
    if (path_.has_parent_path()) fs::create_directories(path_.parent_path());
    file_ = std::make_unique<AtomicFile>(path_);
  }
  file_->write(text);
  ++kept_;
}

void Quarantine::close() {
  if (file_) {
    file_->commit();
    file_.reset();
  } else if (count_ == 0 && !path_.empty()) {
    std::error_code ignored;  // absent, as it should be
    fs::remove(path_, ignored);
  }
}

}  // namespace witan
