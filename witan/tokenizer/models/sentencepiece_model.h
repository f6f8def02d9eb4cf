// Reads SentencePiece's .model files: a ModelProto in protobuf's wire format.
// Sources: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
//          https://protobuf.dev/programming-guides/encoding
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace witan {

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
  std::string unk_surface = " \u2047 ";  // what it becomes in a decoded text
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string charsmap;  // compiled (charsmap.h), or empty
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// `source` names the file in messages. Throws CorruptionError for bytes that are no such model or contradict
// themselves, DataError for a model that Witan does not support.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, std::string_view source);

// Whether the bytes begin as a .model does: with two pieces, behind the settings in some files.
bool looks_like_sentencepiece(std::string_view bytes);

}  // namespace witan
