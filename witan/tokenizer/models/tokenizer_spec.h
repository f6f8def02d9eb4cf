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
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip, prepend, replace, precompiled, strip_accents, bert };
  Kind kind = Kind::nfc;
  std::string pattern = {};        // replace: a text, or a regular expression
  std::string content = {};        // prepend, replace: the new text; precompiled: the character map (charsmap.h)
  bool regex = false;              // replace: what `pattern` is
  bool left = true, right = true;  // strip: which ends
  // bert: removes control characters, puts spaces around Chinese characters, removes accents, writes lower case
  bool clean = false, chinese = false, accents = false, lower = false;
  bool operator==(const NormalizerStep&) const = default;
};

// What becomes of the matches of a split pattern: a piece each, nothing, one piece with the matches next to it, or a
// part of the piece before or behind it.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
enum class PrependScheme { always, first, never };

// One step of the pre-tokenizer. Metaspace writes `pattern` for every space, puts one before the text (`prepend`:
// before every part between added tokens, or only before the first) and cuts before each (`cut`).
struct SplitStep {
  // punctuation, words (runs of word characters and of others that are not white space), bert: white space removed and
  // punctuation isolated
  enum class Kind { regex, literal, metaspace, punctuation, words, bert };

  SplitStep(std::string regex) : pattern(std::move(regex)) {}  // NOLINT(google-explicit-constructor): isolated matches
  SplitStep(const char* regex) : pattern(regex) {}             // NOLINT(google-explicit-constructor)
  static SplitStep metaspace(std::string replacement, PrependScheme prepend, bool cut) {
    SplitStep step(std::move(replacement));
    step.kind = Kind::metaspace;
    step.prepend = prepend;
    step.cut = cut;
    return step;
  }

  static SplitStep of(Kind kind) {
    SplitStep step("");
    step.kind = kind;
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

// One step of what makes text of tokens where the vocabulary is one of characters.
struct DecoderStep {
  // replace `pattern` by `content`; strip up to `start` and `stop` times `pattern` from the ends of each token;
  // metaspace: `pattern` stands for a space; word_piece: the prefix `pattern` marks tokens within a word;
  // byte_fallback: <0x0A> is the byte 10; fuse: all tokens become one; join: a space between tokens
  enum class Kind { replace, strip, metaspace, word_piece, byte_fallback, fuse, join };
  Kind kind = Kind::fuse;
  std::string pattern = {}, content = {};
  bool regex = false;     // replace: what `pattern` is
  bool prepends = false;  // metaspace: encoding puts one before the text
  bool cleanup = false;   // word_piece: no spaces before punctuation
  int64_t start = 0, stop = 0;
  bool operator==(const DecoderStep&) const = default;
};

struct TokenizerSpec {
  enum class Model { bpe, unigram, word_piece, word_level };

  Model model = Model::bpe;
  std::vector<std::string> tokens;     // id -> bytes, added tokens included; empty where the id is not used. Of a
                                       // vocabulary of characters: the text in the file, such as ▁the or <0x0A>
  std::optional<int32_t> empty_token;  // the id of a token without text, which stands for nothing
  std::vector<Merge> merges;           // by rank: the first is applied first
  std::vector<uint32_t> merge_ranks;   // of each merge; empty: its place. Of equal ranks the leftmost goes first
  std::string word_prefix;             // word_piece: of tokens within a word
  int64_t longest_word = 0;            // word_piece: in characters; longer ones are unknown
  std::vector<double> scores;          // unigram: log probability of each token
  std::vector<AddedToken> added;       // by id
  std::vector<SplitStep> patterns;     // of the pre-tokenizer, applied one after the other
  std::vector<NormalizerStep> normalizers;
  bool prefix_space = false;   // a space is put before text that does not start with one
  bool ignore_merges = false;  // a pre-token that is a token is not merged, whatever the merges say
  // Words are merged from their bytes; else from their characters.
  bool byte_level = true;
  bool byte_fallback = false;          // a character without a token becomes the tokens of its bytes, <0x00> … <0xFF>
  std::optional<int32_t> unk;          // what stands for a character without a token; none: it is dropped
  bool fuse_unk = false;               // neighbours become one
  std::vector<DecoderStep> decoding;   // of a vocabulary of characters
  std::string sentencepiece;           // the bytes of a SentencePiece model, which then says how to encode
  std::vector<int32_t> before, after;  // what the post-processor puts around every text
  // JSON that does not affect encode(), preserved for other readers.
  std::string post_processor = "null", truncation = "null", padding = "null", unk_token = "null";
  std::string decoder = "null";  // of a vocabulary of characters
};

}  // namespace witan
