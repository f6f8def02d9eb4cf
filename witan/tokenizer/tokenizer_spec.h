// The definition of a tokenizer as plain data: the contents of its file, or the result of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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
  bool special = true;       // recognised in a text only on request
  bool normalized = false;   // matched after normalisation instead of before
  bool in_model = true;      // the model's vocabulary lists it too
  bool single_word = false;  // matched only where no letter, digit or underscore touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and behind it
};

// One step of the normalizer, in Hugging Face's terms.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip, prepend, replace, precompiled };
  Kind kind = Kind::nfc;
  std::string pattern = {};        // replace: a text, or a regular expression
  std::string content = {};        // prepend, replace: the new text; precompiled: the character map (charsmap.h)
  bool regex = false;              // replace: what `pattern` is
  bool left = true, right = true;  // strip: which ends
  bool operator==(const NormalizerStep&) const = default;
};

// What becomes of the matches of a split pattern: a piece each, nothing, one piece with the matches next to it, or a
// part of the piece before or behind it.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
enum class PrependScheme { always, first, never };

// One step of the pre-tokenizer. Metaspace writes `pattern` for every space, puts one before the text (`prepend`:
// before every part between added tokens, or only before the first) and cuts before each (`cut`).
struct SplitStep {
  enum class Kind { regex, literal, metaspace };

  SplitStep(std::string regex) : pattern(std::move(regex)) {}  // NOLINT(google-explicit-constructor): isolated matches
  SplitStep(const char* regex) : pattern(regex) {}             // NOLINT(google-explicit-constructor)
  static SplitStep metaspace(std::string replacement, PrependScheme prepend, bool cut) {
    SplitStep step(std::move(replacement));
    step.kind = Kind::metaspace;
    step.prepend = prepend;
    step.cut = cut;
    return step;
  }

  std::string pattern;
  Kind kind = Kind::regex;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what stands between the matches is what counts as matched
  PrependScheme prepend = PrependScheme::always;
  bool cut = true;
  bool operator==(const SplitStep&) const = default;
};

// How the text of tokens becomes bytes where the vocabulary is one of characters.
struct Decoding {
  std::string space = {};      // stands for a space: "▁"; empty: nothing does
  bool byte_fallback = false;  // <0x0A> is the byte 10
  int64_t strip_spaces = 0;    // so many spaces are removed from the beginning of a decoded text
  bool operator==(const Decoding&) const = default;
};

struct TokenizerSpec {
  enum class Model { bpe, unigram };

  Model model = Model::bpe;
  std::vector<std::string> tokens;  // id -> bytes, added tokens included; empty where the id is not used. Of a
                                    // vocabulary of characters: the text in the file, such as ▁the or <0x0A>
  std::vector<Merge> merges;          // by rank: the first is applied first
  std::vector<uint32_t> merge_ranks;  // of each merge; empty: its place. Of equal ranks the leftmost goes first
  std::vector<double> scores;         // unigram: log probability of each token
  std::vector<AddedToken> added;      // by id
  std::vector<SplitStep> patterns;    // of the pre-tokenizer, applied one after the other
  std::vector<NormalizerStep> normalizers;
  bool prefix_space = false;   // a space is put before text that does not start with one
  bool ignore_merges = false;  // a pre-token that is a token is not merged, whatever the merges say
  // Words are merged from their bytes; else from their characters.
  bool byte_level = true;
  bool byte_fallback = false;  // a character without a token becomes the tokens of its bytes, <0x00> … <0xFF>
  std::optional<int32_t> unk;  // what stands for a character without a token; none: it is dropped
  bool fuse_unk = false;       // neighbours become one
  Decoding decoding;           // of a vocabulary of characters
  std::string sentencepiece;   // the bytes of a SentencePiece model, which then says how to encode
  // JSON that does not affect encode() here, preserved for other readers: for example the tokens added around a
  // sequence.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
  std::string decoder = "null";  // of a vocabulary of characters
};

}  // namespace witan
