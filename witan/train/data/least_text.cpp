#include "witan/train/data/least_text.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/datasets/token_dataset.h"
#include "witan/data/text/decompress.h"
#include "witan/train/data/run_data.h"

namespace witan {
namespace {

constexpr int64_t kReplacementBytes = 3;  // of U+FFFD, which may replace a single byte

bool may_lengthen(const TokenizerSpec& spec) {
  const bool of_bytes = spec.model == TokenizerSpec::Model::bpe && spec.byte_level && spec.sentencepiece.empty();
  const auto adds = [](const SplitStep& step) { return step.kind == SplitStep::Kind::metaspace; };
  return !of_bytes || spec.prefix_space || !spec.normalizers.empty() || std::ranges::any_of(spec.patterns, adds);
}

// Each document may have an end-of-text token. A plain text is cut into documents of at least half a window. In JSON
// Lines, the braces and quotes of a row make up for it.
int64_t most_tokens(const Source& file, const DataConfig& config) {
  const int64_t bytes = static_cast<int64_t>(file.bytes) * (config.replace_invalid_utf8 ? kReplacementBytes : 1);
  if (file.kind != SourceKind::text) return bytes;
  return bytes + 1 + static_cast<int64_t>(2 * file.bytes / CorpusOptions().document_bytes);
}

void require_tokens(const std::string& place, const std::vector<Source>& files, const DataConfig& config,
                    const Tokenizer* tokenizer, int64_t least, const char* purpose) {
  if (config.sft || (tokenizer != nullptr && may_lengthen(tokenizer->spec()))) return;
  int64_t bytes = 0, most = 0;
  for (const Source& file : files) {
    bytes += static_cast<int64_t>(file.bytes);
    most += most_tokens(file, config);
  }
  if (bytes == 0 || most >= least) return;  // reading reports a lack of any text
  for (const Source& file : files)          // the files are few and small here
    if (is_table(file.kind) || is_compressed(file.path)) return;
  throw DataError(cat(place, " has ", counted(bytes, "byte"), ", which are ", counted(most, "token"),
                      " at most; with seq_length ", config.seq_length, " ", purpose, " ", least,
                      ": give more text, or choose a smaller seq_length"));
}

}  // namespace

int64_t least_tokens_of_splits(const DataConfig& config) {
  return 2 * split_options(config).least_tokens;
}

int64_t least_tokens_of_set(const DataConfig& config) {
  constexpr int64_t kOfOneTarget = 2;  // a packed sample may be padding except for these
  return config.packs() ? kOfOneTarget : config.seq_length + 1;
}

void require_enough_text(const std::string& place, const std::vector<Source>& files, const DataConfig& config,
                         const Tokenizer* tokenizer) {
  require_tokens(place, files, config, tokenizer, least_tokens_of_splits(config),
                 "a sample to train on and one for validation need");
}

void require_enough_validation_text(const DataConfig& config, const Tokenizer* tokenizer) {
  for (const auto& [name, path] : parse_validation_sets(config.valid_data))
    if (!names_tokens(path))
      require_tokens(cat("valid_data: ", name, ": ", path), find_sources({path}).files, config, tokenizer,
                     least_tokens_of_set(config), "a sample needs");
}

}  // namespace witan
