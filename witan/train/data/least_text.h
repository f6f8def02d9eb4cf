// Finds text that is too short for the samples of a run, by the sizes of its files, before it is tokenized.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "witan/data/corpus/sources.h"
#include "witan/tokenizer/tokenizer.h"
#include "witan/train/config/config.h"

namespace witan {

// The minimum number of tokens of text for training and validation together, and for a set of valid_data. There is no
// such minimum for conversations.
int64_t least_tokens_of_splits(const DataConfig& config);
int64_t least_tokens_of_set(const DataConfig& config);

// Throws DataError if the files of `data`, or of one part of a mixture, cannot have that many tokens: a token has at
// least one byte of text, and a document may have one end-of-text token more. Nothing is known of tables, of compressed
// files, and with a tokenizer that may lengthen text; tokenizing decides then. `place` names the files in the message;
// `tokenizer` is null if a byte-level one is yet to be trained.
void require_enough_text(const std::string& place, const std::vector<Source>& files, const DataConfig& config,
                         const Tokenizer* tokenizer);
// Checks each set of valid_data that is text.
void require_enough_validation_text(const DataConfig& config, const Tokenizer* tokenizer);

}  // namespace witan
