// What a byte-level BPE tokenizer is, as plain data: what tokenizer.json holds and what the trainer makes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace witan {

// Inside a word, `left` next to `right` becomes `result`.
struct Merge {
  int32_t left, right, result;
  bool operator==(const Merge&) const = default;
};

// A token matched as a whole in the text, before words are cut.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = true;      // recognised in a text only when asked
  bool normalized = false;  // matched after normalisation instead of before
  bool in_model = true;     // the model's vocabulary lists it too
};

struct TokenizerSpec {
  std::vector<std::string> tokens;    // id -> bytes, added tokens included; empty where the id is not used
  std::vector<Merge> merges;          // by rank: the first is applied first
  std::vector<AddedToken> added;      // by id
  std::vector<std::string> patterns;  // split patterns, applied one after the other
  bool nfc = false;                   // text is brought to Unicode's normalization form C first
  bool prefix_space = false;          // a space is put before text that does not start with one
  bool ignore_merges = false;         // a word that is a token stays whole, whatever the merges say
  // JSON that does not change what encode() does here, kept for other readers: what goes around the tokens of a
  // sequence.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
};

}  // namespace witan
