// Rows of a jsonl file: one JSON object a line, whose text stands under one key. docs/formats/jsonl.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace witan {

// What became of a row. `reason` is empty when the row is good, else says what is wrong with it.
struct JsonlRow {
  std::string_view text;  // UTF-8; valid until the next parse()
  std::string reason;

  bool good() const { return reason.empty(); }
};

// Not thread-safe: holds the parser's buffers.
class JsonlParser {
 public:
  explicit JsonlParser(std::string key);
  ~JsonlParser();
  JsonlParser(const JsonlParser&) = delete;
  JsonlParser& operator=(const JsonlParser&) = delete;

  // Never throws for what a row may hold. Rows are strict RFC 8259, valid UTF-8, at most 64 levels deep, and have the
  // key exactly once, with a string.
  JsonlRow parse(std::string_view line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace witan
