// The merges of vocabularies that list none: SentencePiece's and tiktoken's, which merge two neighbours whenever what
// they spell is a token, the one of the lowest rank first.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "witan/tokenizer/models/token_map.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {

// Fills spec.merges and spec.merge_ranks: for each of the tokens `ids` every pair of tokens of `known` that spells it,
// at rank `rank_of[id]`. Pairs are cut between bytes, or between characters if `characters`. Throws DataError for a
// token of more than 1,024 bytes.
void add_merges(TokenizerSpec& spec, const std::vector<int32_t>& ids, const TokenMap& known,
                const std::vector<uint32_t>& rank_of, bool characters);

}  // namespace witan
