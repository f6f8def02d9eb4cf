// Where the pieces of ASCII text end, 64 bytes at a time: what the split patterns of published tokenizers say of
// letters, digits, spaces and symbols, as operations on bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "witan/tokenizer/text/ascii_block.h"

namespace witan {

enum class Contractions {
  none,
  exact,    // 's 't 're 've 'm 'll 'd are pieces, in small letters
  folded,   // in capitals, too
  endings,  // folded, and parts of the word before them
};

// What a pattern does with ASCII characters. Letters, digits, white space and symbols (all others) form runs, each a
// piece; before that: symbols take a space before them along; of a run of white space the last character is apart.
struct AsciiRules {
  bool letters_take_any = false;      // a space or symbol before letters is of their piece; else only ' '
  bool capitals_begin_words = false;  // behind small letters
  int digits = 0;                     // in a piece; 0: any number, and a space before them
  bool digits_end_texts = false;      // which changes what white space before them is
  bool newlines_are_apart = false;    // they end runs of white space, and symbols take those behind them along
  bool slashes_follow = false;        // symbols take slashes among those newlines along, too
  bool splits_controls = false;       // whether control characters are like symbols; else these rules do not know them
  Contractions contractions = Contractions::none;
};

// The length of the contraction at p, which is an apostrophe, or 0. At least two bytes behind it can be read.
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

// The bits of `runs` from one of `from` on, up to the end of the run.
inline uint64_t rest_of_runs(uint64_t from, uint64_t runs) {
  uint64_t rest = from & runs;
  for (int step = 1; step < 64; step *= 2) {
    rest |= runs & (rest << step);
    runs &= runs << step;
  }
  return rest;
}

// The bits of those places among `from`, where a run of `runs` begins, behind whose run there is none of `others`.
inline uint64_t runs_not_before(uint64_t others, uint64_t from, uint64_t runs) {
  if ((((runs + from) & ~runs) & others) == 0) return from;
  uint64_t found = 0;
  for (; from != 0; from &= from - 1) {
    const uint64_t one = from & -from;
    if ((((runs + one) & ~runs) & others) == 0) found |= one;
  }
  return found;
}

// What becomes of the places where pieces begin with the contractions at those apostrophes that begin one.
template <AsciiRules kRules>
uint64_t with_contractions(const char* p, uint64_t apostrophes, uint64_t pieces) {
  constexpr bool kEndings = kRules.contractions == Contractions::endings;
  int end = -1;  // of the last one; right behind an ending stands none that belongs to the same word
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

// A bit for each place from p + 1 to p + 63 at which a piece begins, if one begins at p. Only where the bytes behind
// that place could not change it, and none where these rules do not apply. 64 bytes can be read.
template <AsciiRules kRules>
uint64_t ascii_pieces(const char* p) {
  const AsciiBlock block(p);
  uint64_t unknown = block.beyond_ascii();
  if constexpr (!kRules.splits_controls) unknown |= block.between(0, 8) | block.between(14, 31) | block.equal(127);
  const uint64_t known = ~unknown & (unknown - 1);  // the bytes before the first unknown one
  const uint64_t space = block.equal(' ');
  const uint64_t white = (space | block.between('\t', '\r')) & known;
  // A run of white space is known together with what stands behind it; of other places the next two bytes matter.
  const int count = std::countr_one(known);
  if (count == 0) return 0;
  const int certain = count - std::countl_one(white << (64 - count)) - 2;
  if (certain <= 1) return 0;

  const uint64_t letters = block.letters() & known, digits = block.between('0', '9') & known;
  const uint64_t symbols_or_taken = known & ~(letters | digits | white);
  const uint64_t newlines = kRules.newlines_are_apart ? (block.equal('\n') | block.equal('\r')) & white : 0;
  uint64_t taken = newlines & (symbols_or_taken << 1);  // by the symbols before them
  if (taken != 0) taken = rest_of_runs(taken, kRules.slashes_follow ? newlines | block.equal('/') : newlines);
  const uint64_t symbols = symbols_or_taken & ~taken;
  const uint64_t blanks = white & ~taken, lines = newlines & ~taken;

  const auto starts = [](uint64_t runs) { return runs & ~(runs << 1); };
  const uint64_t symbol_pieces = starts(symbols) & ~(space << 1);  // those that no space begins
  uint64_t before_letters = space;
  if constexpr (kRules.letters_take_any) before_letters = (white & ~newlines) | symbol_pieces;
  uint64_t pieces = symbol_pieces | (starts(letters) & ~(before_letters << 1));
  if constexpr (kRules.capitals_begin_words) pieces |= (block.between('a', 'z') << 1) & block.between('A', 'Z');

  if constexpr (kRules.digits == 0) pieces |= starts(digits) & ~(space << 1);
  if constexpr (kRules.digits == 1) pieces |= digits;
  if constexpr (kRules.digits == 3)
    for (uint64_t begin = starts(digits); begin != 0; begin = (begin << 3) & digits & (digits << 1) & (digits << 2))
      pieces |= begin;

  // Of white space up to its last newline is a piece, and the rest but for its last character.
  uint64_t last = blanks & ~(blanks >> 1) & ~lines;
  if constexpr (kRules.digits_end_texts) last &= ~(digits >> 1);
  pieces |= starts(blanks) | last;
  if constexpr (kRules.newlines_are_apart)
    if (const uint64_t behind_lines = blanks & ~lines & (lines << 1); behind_lines != 0)
      pieces |= runs_not_before(lines, behind_lines, blanks & ~lines);

  const uint64_t sure = (uint64_t{1} << certain) - 1;
  if constexpr (kRules.contractions != Contractions::none) {
    const uint64_t before = kRules.contractions == Contractions::endings ? letters << 1 : symbol_pieces;
    if (const uint64_t apostrophes = block.equal('\'') & before & (letters >> 1) & sure; apostrophes != 0)
      pieces = with_contractions<kRules>(p, apostrophes, pieces);
  }
  return pieces & sure & ~uint64_t{1};
}

}  // namespace witan
