// Rows of a JSON Lines file: one JSON object per line, with its text under one key. docs/formats/jsonl.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

// The result of parsing a row. `reason` is empty if the row is usable, else it says why not.
struct JsonlRow {
  std::string_view text;  // UTF-8; valid until the next parse()
  std::string reason;

  bool good() const { return reason.empty(); }
};

// Not thread-safe: holds the parser's buffers.
class JsonlParser {
 public:
  // `key`: a name, or where the row does not have that itself, a path of names with dots ("meta.title"), as in tables.
  // `others`: keys that a usable row has, too, each with a string.
  explicit JsonlParser(std::string key, std::vector<std::string> others = {});
  ~JsonlParser();
  JsonlParser(const JsonlParser&) = delete;
  JsonlParser& operator=(const JsonlParser&) = delete;

  // Never throws for the contents of a row. Rows are strict RFC 8259, valid UTF-8, at most 64 levels deep, and have the
  // key exactly once, with a string.
  JsonlRow parse(std::string_view line);
  // Parses a row that is taken as a whole: any object is usable, whatever keys it has; `text` stays empty.
  JsonlRow parse_object(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace witan
