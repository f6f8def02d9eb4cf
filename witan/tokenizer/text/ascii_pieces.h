// Splits ASCII text 64 bytes at a time: the rules of published split patterns for letters, digits, spaces and symbols,
// expressed as operations on 64-bit masks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "witan/tokenizer/text/ascii_block.h"

namespace witan {

enum class Contractions {
  none,
  exact,    // 's 't 're 've 'm 'll 'd are pieces, in lower case
  folded,   // also in upper case
  endings,  // folded, and part of the preceding word
};

// How a pattern splits ASCII characters. Runs of letters, digits, white space and symbols (all other characters) are
// pieces, except that a symbol piece includes a space before it, and that the last character of a run of white space is
// a piece of its own.
struct AsciiRules {
  bool letters_take_any = false;      // a letter piece includes any space or symbol before it; else only ' '
  bool capitals_begin_words = false;  // a capital after a lower-case letter starts a piece
  int digits = 0;                     // most digits of a piece; 0: unlimited, and with a space before them
  bool digits_end_texts = false;      // the text ends at a digit, which affects white space before it
  bool newlines_are_apart = false;    // newlines end runs of white space, and a symbol piece includes those after it
  bool slashes_follow = false;        // a symbol piece includes slashes among those newlines
  bool splits_controls = false;       // control characters count as symbols; else these rules stop at them
  Contractions contractions = Contractions::none;
};

// The length of the contraction at the apostrophe p, or 0. At least two bytes after p must be readable.
template <AsciiRules kRules>
inline int ascii_contraction(const char* p) {
  const auto letter = [&](int i) {
    const bool upper = p[i] >= 'A' && p[i] <= 'Z';
    return kRules.contractions != Contractions::exact && upper ? static_cast<char>(p[i] | 0x20) : p[i];
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  return first == 'l' && second == 'l' ? 3 : 0;
}

// The bits of `runs` from each bit of `from` to the end of its run.
inline uint64_t rest_of_runs(uint64_t from, uint64_t runs) {
  uint64_t rest = from & runs;
  for (int step = 1; step < 64; step *= 2) {
    rest |= runs & (rest << step);
    runs &= runs << step;
  }
  return rest;
}

// Each bit of `from` is the start of a run of `runs`: returns those whose run is not followed by a bit of `others`.
inline uint64_t runs_not_before(uint64_t others, uint64_t from, uint64_t runs) {
  if ((((runs + from) & ~runs) & others) == 0) return from;
  uint64_t found = 0;
  for (; from != 0; from &= from - 1) {
    const uint64_t one = from & -from;
    if ((((runs + one) & ~runs) & others) == 0) found |= one;
  }
  return found;
}

// The starts of pieces `pieces`, corrected for those `apostrophes` that start a contraction.
template <AsciiRules kRules>
uint64_t with_contractions(const char* p, uint64_t apostrophes, uint64_t pieces) {
  constexpr bool kEndings = kRules.contractions == Contractions::endings;
  int end = -1;  // of the last contraction: another one right after it does not belong to the same word
  for (; apostrophes != 0; apostrophes &= apostrophes - 1) {
    const int at = std::countr_zero(apostrophes);
    const int length = kEndings && at == end ? 0 : ascii_contraction<kRules>(p + at);
    if (length == 0) continue;
    end = at + length;
    pieces &= ~((kEndings ? (uint64_t{1} << length) - 1 : (uint64_t{1} << length) - 2) << at);
    if (end < 64) pieces |= uint64_t{1} << end;
  }
  return pieces;
}

// A bit for each position from p + 1 to p + 63 at which a piece starts, provided that one starts at p. Omits positions
// that depend on bytes beyond the block, and all from the first byte on that the rules do not cover. 64 bytes must be
// readable.
template <AsciiRules kRules>
uint64_t ascii_pieces(const char* p) {
  const AsciiBlock block(p);
  uint64_t unknown = block.beyond_ascii();
  if constexpr (!kRules.splits_controls) unknown |= block.between(0, 8) | block.between(14, 31) | block.equal(127);
  const uint64_t known = ~unknown & (unknown - 1);  // the bytes before the first unknown one
  const uint64_t space = block.equal(' ');
  const uint64_t white = (space | block.between('\t', '\r')) & known;
  // A run of white space is decided by what follows it; any other position by the next two bytes.
  const int count = std::countr_one(known);
  if (count == 0) return 0;
  const int certain = count - std::countl_one(white << (64 - count)) - 2;
  if (certain <= 1) return 0;

  const uint64_t letters = block.letters() & known, digits = block.between('0', '9') & known;
  const uint64_t symbols_or_taken = known & ~(letters | digits | white);
  const uint64_t newlines = kRules.newlines_are_apart ? (block.equal('\n') | block.equal('\r')) & white : 0;
  uint64_t taken = newlines & (symbols_or_taken << 1);  // into the piece of the symbols before them
  if (taken != 0) taken = rest_of_runs(taken, kRules.slashes_follow ? newlines | block.equal('/') : newlines);
  const uint64_t symbols = symbols_or_taken & ~taken;
  const uint64_t blanks = white & ~taken, lines = newlines & ~taken;

  const auto starts = [](uint64_t runs) { return runs & ~(runs << 1); };
  const uint64_t symbol_pieces = starts(symbols) & ~(space << 1);  // those without a space before them
  uint64_t before_letters = space;
  if constexpr (kRules.letters_take_any) before_letters = (white & ~newlines) | symbol_pieces;
  uint64_t pieces = symbol_pieces | (starts(letters) & ~(before_letters << 1));
  if constexpr (kRules.capitals_begin_words) pieces |= (block.between('a', 'z') << 1) & block.between('A', 'Z');

  if constexpr (kRules.digits == 0) pieces |= starts(digits) & ~(space << 1);
  if constexpr (kRules.digits == 1) pieces |= digits;
  if constexpr (kRules.digits == 3)
    for (uint64_t begin = starts(digits); begin != 0; begin = (begin << 3) & digits & (digits << 1) & (digits << 2))
      pieces |= begin;

  // White space is a piece up to its last newline; of the rest, all but the last character.
  uint64_t last = blanks & ~(blanks >> 1) & ~lines;
  if constexpr (kRules.digits_end_texts) last &= ~(digits >> 1);
  pieces |= starts(blanks) | last;
  if constexpr (kRules.newlines_are_apart)
    if (const uint64_t after_lines = blanks & ~lines & (lines << 1); after_lines != 0)
      pieces |= runs_not_before(lines, after_lines, blanks & ~lines);

  const uint64_t sure = (uint64_t{1} << certain) - 1;
  if constexpr (kRules.contractions != Contractions::none) {
    const uint64_t before = kRules.contractions == Contractions::endings ? letters << 1 : symbol_pieces;
    if (const uint64_t apostrophes = block.equal('\'') & before & (letters >> 1) & sure; apostrophes != 0)
      pieces = with_contractions<kRules>(p, apostrophes, pieces);
  }
  return pieces & sure & ~uint64_t{1};
}

}  // namespace witan
