#include "witan/data/prepare/shard_tokenizer.h"

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/tokenizer/vocabulary_match.h"

namespace witan {
namespace {

fs::path prefix_of(const fs::path& shards) {
  const fs::path extension = shards.extension();
  return extension == ".bin" || extension == ".idx" ? fs::path(shards).replace_extension() : shards;
}

// Something may stand behind the hash of the tokenizer (ShardTokenizer).
bool is_of(const ShardTokenizer& shards, const Tokenizer& tokenizer) {
  return shards.vocab_size == tokenizer.vocab_size() && shards.hash.starts_with(tokenizer.hash());
}

// The tokenizer beside the shards, if it is the one that they were made with.
std::optional<Tokenizer> own_tokenizer(const fs::path& path, const ShardTokenizer& shards) try {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return std::nullopt;
  Tokenizer own = Tokenizer::load(path);
  return is_of(shards, own) ? std::optional(std::move(own)) : std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

void compare_exactly(const Tokenizer& own, const Tokenizer& given, TokenizerMismatch& found) {
  const VocabularyMatch match = match_vocabularies(own.spec(), given.spec());
  const auto first = static_cast<size_t>(match.first.value_or(0));
  const std::string token = cat("token ", first, " is \"", clipped(own.spec().tokens[first], 24),
                                "\" in the former, \"", clipped(given.spec().tokens[first], 24), "\" in the latter");
  found.certain = match.different > 0;
  if (found.certain)
    found.message += cat(token, ", and ", match.different, " of ", match.common, " differ");
  else if (match.renamed > 0)
    found.message += cat(token, ", and so do ", match.renamed, " added tokens in all");
  else
    found.message += "the tokens are the same as far as both have them, but text may be divided into others";
}

void compare_digests(const ShardTokenizer& shards, const Tokenizer& given, TokenizerMismatch& found) {
  const DigestMatch match = match_digest(shards.vocabulary, shards.vocab_size, given.spec());
  found.certain = match.other();
  if (match.common == 0)
    found.message += "whether ids mean the same tokens in both is not known";
  else if (match.different == 0)
    found.message += "the tokens are the same as far as both have them, but text may be divided into others";
  else
    found.message +=
        cat("in ", match.different, " of ", match.common, " stretches of 64 ids, ids stand for other tokens");
}

}  // namespace

std::optional<TokenizerMismatch> find_tokenizer_mismatch(const fs::path& shards, const Tokenizer& tokenizer,
                                                         const std::string& name) {
  const fs::path prefix = prefix_of(shards), beside = prefix.string() + ".tokenizer.json";
  const auto made_with = tokenizer_of_manifest(prefix);
  if (!made_with || is_of(*made_with, tokenizer)) return std::nullopt;
  const auto own = own_tokenizer(beside, *made_with);
  TokenizerMismatch found;
  if (own) found.own = beside.string();
  found.message = cat(shards.string(), " was tokenized with ", own ? cat(found.own, " (") : "another tokenizer (",
                      made_with->vocab_size, " entries", own ? "" : ", hash " + made_with->hash, "), not with ", name,
                      " (", tokenizer.vocab_size(), " entries", own ? "" : ", hash " + tokenizer.hash(), "): ");
  if (own)
    compare_exactly(*own, tokenizer, found);
  else
    compare_digests(*made_with, tokenizer, found);
  return found;
}

}  // namespace witan
