// The pieces that a text is split into, and linear-time scanners for the split patterns of published tokenizers. A
// scanner splits a text exactly where the regular expression would (Unicode categories from unicode.h) but never
// backtracks: it takes linear time even for a megabyte of spaces.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace witan {

// Consecutive pieces: each starts where the previous one ends.
struct Pieces {
  const char* begin;                  // of the first piece
  std::span<const char* const> ends;  // of each piece
  const char* readable_end;           // bytes before this may be read

  template <class Sink>
  void each(Sink sink) const {
    const char* from = begin;
    for (const char* const end : ends) {
      sink(std::string_view(from, static_cast<size_t>(end - from)));
      from = end;
    }
  }
};

// Receive the pieces of a text in order, one or several at a time. Every byte of the text is in exactly one piece.
using PieceSink = std::function<void(std::string_view piece)>;
using PiecesSink = std::function<void(const Pieces& pieces)>;

// Patterns as written in tokenizer.json.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =  // also GPT-4's (cl100k)
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen35Pattern =  // words also contain marks
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =  // also Llama 4's
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekkenPattern =  // Mistral's
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// DeepSeek uses kNumberTripletPattern and then these two, which contain literal newlines.
inline constexpr std::string_view kDeepSeekCjkPattern = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
inline constexpr std::string_view kDeepSeekPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
inline constexpr std::string_view kNumberPattern = R"(\p{N})";
inline constexpr std::string_view kNumberRunPattern = R"(\p{N}+)";
inline constexpr std::string_view kNumberTripletPattern = R"(\p{N}{1,3})";
// Hugging Face's Digits uses Rust's tables, which have newer digits than Oniguruma's.
inline constexpr std::string_view kDigitPattern = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}])";
inline constexpr std::string_view kDigitRunPattern = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}]+)";

// Splits the text [begin, end) and writes where its first pieces end, as many as `ends` has room for. Returns how many
// pieces; the rest of the text can be scanned as a text of its own. A byte that is not part of valid UTF-8 counts as a
// character that is neither letter, number nor space.
using Scanner = size_t (*)(const char* begin, const char* end, std::span<const char*> ends);

// The scanner that is equivalent to `regex`, or nullptr if there is none.
Scanner scanner_for(std::string_view regex);
// Finds the scanner for three expressions, each of which splits the pieces of the previous one.
Scanner scanner_for(std::string_view first, std::string_view second, std::string_view third);

}  // namespace witan
