#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tokenizer/models/sentencepiece.h"

namespace witan {
namespace {

constexpr size_t kMostPieces = size_t{1} << 24;

// Iterates over the fields of a protobuf message. A nested message is another Message over its bytes, so nothing nests
// deeper than the reader asks for.
class Message {
 public:
  struct Field {
    uint32_t number = 0;
    uint64_t value = 0;           // varint, or the bits of a fixed-size number
    std::string_view bytes = {};  // length-delimited
    uint32_t wire = 0;
  };

  Message(std::string_view bytes, std::string_view source, size_t offset)
      : bytes_(bytes), source_(source), offset_(offset) {}

  std::optional<Field> next() {
    if (at_ == bytes_.size()) return std::nullopt;
    Field field;
    const uint64_t tag = varint();
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire = tag & 7;
    if (tag >> 3 == 0 || tag >> 32 != 0) corrupt("a field has the number ", tag >> 3);
    switch (field.wire) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2: {
        const uint64_t length = varint();
        if (length > bytes_.size() - at_)
          corrupt("field ", field.number, " declares ", length, " bytes, but only ", bytes_.size() - at_, " are left");
        field.bytes = bytes_.substr(at_, length);
        at_ += length;
        break;
      }
      case 5:
        field.value = fixed(4);
        break;
      default:
        corrupt("field ", field.number, " has the wire type ", field.wire);
    }
    return field;
  }

  Message inside(const Field& field) const {
    expect(field, 2);
    return {field.bytes, source_, offset_ + static_cast<size_t>(field.bytes.data() - bytes_.data())};
  }
  std::string_view text(const Field& field) const {
    expect(field, 2);
    return field.bytes;
  }
  uint64_t number(const Field& field) const {
    expect(field, 0);
    return field.value;
  }
  bool flag(const Field& field) const { return number(field) != 0; }
  float real(const Field& field) const {
    expect(field, 5);
    const auto bits = static_cast<uint32_t>(field.value);
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  template <class... Words>
  [[noreturn]] void corrupt(const Words&... words) const {
    throw CorruptionError(cat(source_, ": not a SentencePiece model, or a damaged one: ", words..., " at byte ",
                              offset_ + at_, "; download the file again"));
  }

 private:
  void expect(const Field& field, uint32_t wire) const {
    if (field.wire != wire) corrupt("field ", field.number, " has the wire type ", field.wire, " instead of ", wire);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) corrupt("a number is cut off");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    corrupt("a number has more than ten bytes");
  }
  uint64_t fixed(size_t size) {
    if (size > bytes_.size() - at_) corrupt("a number is cut off");
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, size);
    at_ += size;
    return value;
  }

  std::string_view bytes_, source_;
  size_t offset_;  // of the message in the file
  size_t at_ = 0;
};

SentencePieceModel::Piece read_piece(Message message) {
  SentencePieceModel::Piece piece;
  while (const auto field = message.next()) {
    if (field->number == 1) {
      piece.text = message.text(*field);
    } else if (field->number == 2) {
      piece.score = message.real(*field);
    } else if (field->number == 3) {
      const uint64_t type = message.number(*field);
      if (type < 1 || type > 6) message.corrupt("a piece has the type ", type);
      piece.type = static_cast<SentencePieceModel::Type>(type);
    }
  }
  if (piece.text.empty()) message.corrupt("a piece is empty");
  if (!std::isfinite(piece.score)) message.corrupt("the score of a piece is not a finite number");
  return piece;
}

// Returns the number of pieces that were trained.
uint64_t read_trainer(Message message, SentencePieceModel& model, std::string_view source) {
  uint64_t vocab_size = 0;
  while (const auto field = message.next()) {
    if (field->number == 3) {
      const uint64_t type = message.number(*field);
      require<DataError>(type == 1 || type == 2, source, ": a SentencePiece model of type ",
                         type == 3   ? "word"
                         : type == 4 ? "char"
                                     : "unknown",
                         " is not supported: Witan reads BPE and unigram (spm_train --model_type)");
      model.algorithm = static_cast<SentencePieceModel::Algorithm>(type);
    } else if (field->number == 4) {
      vocab_size = message.number(*field);
    } else if (field->number == 24) {
      model.whitespace_as_suffix = message.flag(*field);
    } else if (field->number == 35) {
      model.byte_fallback = message.flag(*field);
    } else if (field->number == 44) {
      model.unk_surface = message.text(*field);
    }
  }
  return vocab_size;
}

void read_normalizer(Message message, SentencePieceModel& model) {
  while (const auto field = message.next()) {
    if (field->number == 2) model.charsmap = message.text(*field);
    if (field->number == 3) model.add_dummy_prefix = message.flag(*field);
    if (field->number == 4) model.remove_extra_whitespaces = message.flag(*field);
    if (field->number == 5) model.escape_whitespaces = message.flag(*field);
  }
}

void check_pieces(SentencePieceModel& model, std::string_view source) {
  std::unordered_set<std::string_view> seen;
  std::optional<int32_t> unk;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    require<CorruptionError>(seen.insert(piece.text).second, source, ": the piece \"", clipped(piece.text),
                             "\" appears twice (id ", id, ")");
    require<DataError>(piece.type != SentencePieceModel::Type::unused, source, ": the piece \"", clipped(piece.text),
                       "\" (id ", id,
                       ") is marked unused, which is not supported: train or export the model without a restricted "
                       "vocabulary");
    if (piece.type != SentencePieceModel::Type::unknown) continue;
    require<CorruptionError>(!unk, source, ": the pieces ", unk.value_or(0), " and ", id, " are both of type unknown");
    unk = static_cast<int32_t>(id);
  }
  require<CorruptionError>(unk.has_value(), source,
                           ": not a SentencePiece model, or a damaged one: no piece is of type unknown");
  model.unk = *unk;
}

// The length of the settings (fields 2 to 5), which come before the pieces in some files.
size_t settings_before_pieces(std::string_view bytes) {
  constexpr std::string_view kTags = "\x12\x1A\x22\x2A";
  size_t end = 0;
  for (size_t fields = 0; fields < kTags.size() && end < bytes.size(); ++fields) {
    if (kTags.find(bytes[end]) == std::string_view::npos) break;
    uint64_t length = 0;
    size_t at = end + 1;
    for (int shift = 0;; shift += 7) {
      if (at == bytes.size() || shift > 28) return 0;
      const auto byte = static_cast<uint8_t>(bytes[at++]);
      length |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    if (length > bytes.size() - at) return 0;
    end = at + length;
  }
  return end;
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, std::string_view source) {
  SentencePieceModel model;
  Message message(bytes, source, 0);
  bool trainer = false, normalizer = false, pieces_last = false;
  uint64_t trained = 0;
  while (const auto field = message.next()) {
    trainer |= field->number == 2;
    normalizer |= field->number == 3;
    pieces_last = field->number == 1;
    if (field->number == 1) {
      if (model.pieces.size() == kMostPieces) message.corrupt("more than ", kMostPieces, " pieces");
      model.pieces.push_back(read_piece(message.inside(*field)));
    }
    if (field->number == 2) trained = read_trainer(message.inside(*field), model, source);
    if (field->number == 3) read_normalizer(message.inside(*field), model);
  }
  check_pieces(model, source);
  // A file that is cut off between two pieces would be a different tokenizer. Most have their settings after the
  // pieces.
  if (!trainer || !normalizer) message.corrupt("it ends before the settings that it was trained with");
  if (pieces_last && model.pieces.size() < trained)
    message.corrupt("it ends after ", model.pieces.size(), " of the ", trained, " pieces that it was trained with");
  return model;
}

bool looks_like_sentencepiece(std::string_view bytes) {
  bytes.remove_prefix(settings_before_pieces(bytes));
  // Twice field 1: a message of `length` bytes that starts with field 1, a string.
  for (int piece = 0; piece < 2; ++piece) {
    if (bytes.size() < 4 || bytes[0] != 0x0A || bytes[2] != 0x0A) return false;
    const auto length = static_cast<unsigned char>(bytes[1]);
    if (length >= 0x80 || size_t{2} + length > bytes.size()) return false;
    bytes.remove_prefix(2 + length);
  }
  return true;
}

}  // namespace witan
