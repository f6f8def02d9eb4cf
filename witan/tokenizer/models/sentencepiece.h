// SentencePiece (https://arxiv.org/abs/1808.06226): reads .model files and encodes text as they prescribe: normalises
// it, then segments it by BPE or the unigram model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/bpe.h"
#include "witan/tokenizer/models/byte_trie.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/models/unigram.h"
#include "witan/tokenizer/text/normalizer.h"

namespace witan {

// The content of a .model file: a ModelProto in protobuf's wire format.
// Sources: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
//          https://protobuf.dev/programming-guides/encoding
struct SentencePieceModel {
  enum class Algorithm { unigram = 1, bpe = 2 };
  enum class Type : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  // by id
  Algorithm algorithm = Algorithm::unigram;
  int32_t unk = 0;                       // the id of the piece of type unknown
  std::string unk_surface = " \u2047 ";  // the text it decodes to
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string charsmap;  // compiled character map (Charsmap), or empty
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// `source` names the file in messages. Throws CorruptionError for bytes that are not such a model or contradict
// themselves, DataError for a model that Witan does not support.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, std::string_view source);

// Whether the bytes start like a .model: with two pieces, after the settings in some files.
bool looks_like_sentencepiece(std::string_view bytes);

// Immutable: encode() may be called from several threads.
class SentencePiece {
 public:
  // Throws CorruptionError for a damaged character map.
  explicit SentencePiece(SentencePieceModel model);

  // Appends the ids of `text`. A byte that is not valid UTF-8 counts as U+FFFD, as in SentencePiece. Once `out` has
  // more than `most` ids, the rest may be omitted.
  void encode(std::string_view text, std::vector<int32_t>& out, size_t most = std::string_view::npos) const;

  // The text that the model segments.
  std::string normalize(std::string_view text) const;

  const SentencePieceModel& model() const { return model_; }

  // The merges of a BPE model, by rank.
  std::vector<Merge> merges() const;

 private:
  struct Replaced {
    std::string_view text;
    size_t length;  // of the text that was replaced
  };
  Replaced next_of(std::string_view text) const;
  size_t user_defined_length(std::string_view text) const {
    return user_defined_ ? user_defined_->longest_prefix(text) : 0;
  }
  void prepare_pieces();
  void prepare_bpe();
  void prepare_unigram();
  // A prefix of a normalised text that certainly has more than `most` tokens; the whole text if no prefix is certain.
  std::string_view prefix_beyond(std::string_view text, size_t most) const;
  void encode_bpe(std::string_view text, std::vector<int32_t>& out, size_t most) const;
  void encode_unigram(std::string_view text, std::vector<int32_t>& out) const;
  // For text without a piece: the pieces of its bytes, or the unknown piece, once for adjacent text.
  void put_unknown(std::string_view text, bool after_unknown, std::vector<int32_t>& out) const;

  SentencePieceModel model_;
  std::optional<Charsmap> charsmap_;
  std::vector<int32_t> byte_ids_;  // of the 256 bytes; the unknown piece for those without one
  size_t most_bytes_ = 0;          // most bytes of normalised text in one token; 0: unlimited
  std::optional<ByteTrie> user_defined_;
  std::unique_ptr<Unigram> unigram_;
  // For BPE: the pieces, then the characters that occur in pieces without being pieces themselves.
  TokenizerSpec merging_;
  std::unique_ptr<TokenMap> symbols_;
  std::unique_ptr<Bpe> bpe_;
};

// Adds what Hugging Face tokenizers needs to encode like the model, as far as its rules allow. Keeps the model's bytes,
// from which Witan restores the model itself.
TokenizerSpec hugging_face_form(const TokenizerSpec& spec);

// The tokenizer of a .model file. `source` names it in messages. Throws as parse_sentencepiece_model() does.
TokenizerSpec sentencepiece_spec(std::string bytes, std::string_view source);

}  // namespace witan
