// Text that is too short for the samples of a run, as far as the sizes of its files tell before it is tokenized.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/data/corpus/sources.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// Tokens that the splits for training and validation need together, and a set of valid_data. Of text: conversations are
// not counted so.
int64_t least_tokens_of_splits(const DataConfig& config);
int64_t least_tokens_of_set(const DataConfig& config);

// Throws DataError where these files of `data`, or of one of its parts that are mixed, cannot have so many tokens: each
// token has at least one byte of text, and each document may have an end of text besides. Sizes do not tell that of
// tables and compressed files, nor with a tokenizer that may lengthen text; then, and of text that is long enough as
// far as they tell, tokenizing it decides. `place`: of the files, for the message; `tokenizer`: null where it is yet to
// be trained, on bytes.
void require_enough_text(const std::string& place, const std::vector<Source>& files, const DataConfig& config,
                         const Tokenizer* tokenizer);
// Likewise of each set of valid_data that is text.
void require_enough_validation_text(const DataConfig& config, const Tokenizer* tokenizer);

}  // namespace witan
