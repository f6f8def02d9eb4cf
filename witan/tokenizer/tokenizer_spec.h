// The definition of a byte-level BPE tokenizer as plain data: the contents of tokenizer.json and the result of
// training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace witan {

// Inside a pre-token, `left` next to `right` becomes `result`.
struct Merge {
  int32_t left, right, result;
  bool operator==(const Merge&) const = default;
};

// A token that is matched in the text before it is split into pre-tokens.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;      // recognised in a text only on request
  bool normalized = false;  // matched after normalisation instead of before
  bool in_model = true;     // the model's vocabulary lists it too
};

struct TokenizerSpec {
  std::vector<std::string> tokens;    // id -> bytes, added tokens included; empty where the id is not used
  std::vector<Merge> merges;          // by rank: the first is applied first
  std::vector<AddedToken> added;      // by id
  std::vector<std::string> patterns;  // split patterns, applied one after the other
  bool nfc = false;                   // text is converted to Unicode's normalization form C first
  bool prefix_space = false;          // a space is put before text that does not start with one
  bool ignore_merges = false;         // a pre-token that is a token is not merged, whatever the merges say
  // JSON that does not affect encode() here, preserved for other readers: for example the tokens added around a
  // sequence.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
};

}  // namespace witan
