#include "witan/data/prepare/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "witan/base/error.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/prepare/shard_manifest.h"
#include "witan/data/prepare/tokenize_corpus.h"

namespace witan {
namespace {

// `loss`: whether the documents are conversations, of which only some tokens are learnt from.
EncodedConversation encode_document(const TextEncoder& encoder, bool loss, const Conversation& document) {
  if (loss) return encode_conversation(document, encoder.encode_chat);
  EncodedConversation encoded;
  encoder.encode(document.text, encoded.tokens);
  if (encoder.end_of_text && !encoded.tokens.empty()) encoded.tokens.push_back(*encoder.end_of_text);
  return encoded;
}

TokenizeOptions tokenize_options(const TextEncoder& encoder, const PrepareOptions& options) {
  const bool loss = options.corpus.conversations != nullptr;
  return {options.corpus,
          options.threads,
          options.piece_bytes,
          encoder.vocab_size,
          loss,
          [&encoder, loss](const Conversation& document) { return encode_document(encoder, loss, document); },
          options.dropping};
}

CorpusStatistics write_shards(const std::vector<Source>& sources, CorpusTokenizer& tokenizer,
                              const std::function<void(const PrepareProgress&)>& progress) {
  uint64_t total = 0;
  for (const Source& source : sources) total += source.bytes;
  PrepareProgress reported;
  const auto tell = [&](const TokenizeProgress& at) {
    reported = {std::max(at.source_bytes, reported.source_bytes),
                total,
                at.documents,
                at.tokens,
                at.text_bytes,
                at.resumed_bytes,
                at.resumed_tokens};
    if (progress) progress(reported);
  };
  const CorpusStatistics statistics = tokenizer.run(sources, tell);
  reported.source_bytes = total;
  reported.total_source_bytes = total;
  if (progress) progress(reported);
  return statistics;
}

PartSize measure(const TokenDataset& part, const std::vector<int64_t>& bytes_of) {
  constexpr int64_t kPiece = 1 << 20;
  PartSize size{part.documents(), part.tokens(), 0};
  std::vector<int32_t> tokens;
  for (int64_t d = 0; d < part.documents(); ++d)
    for (int64_t begin = 0; begin < part.length(d); begin += kPiece) {
      tokens.resize(static_cast<size_t>(std::min(kPiece, part.length(d) - begin)));
      part.read(d, begin, tokens);
      for (const int32_t token : tokens) {
        require<DataError>(static_cast<size_t>(token) < bytes_of.size(), part.name(), ": token id ", token,
                           " is outside the vocabulary of ", bytes_of.size());
        size.bytes += bytes_of[static_cast<size_t>(token)];
      }
    }
  return size;
}

void measure_parts(const TextEncoder& encoder, const SplitOptions& options, PreparedDataset& prepared) {
  std::vector<int64_t> bytes_of(static_cast<size_t>(encoder.vocab_size));
  for (size_t id = 0; id < bytes_of.size(); ++id) bytes_of[id] = encoder.token_bytes(static_cast<int32_t>(id));
  const auto tokens = open_tokens(prepared.prefix);
  SplitOptions possible = options;  // shards of less text than that are shards too
  possible.least_tokens = std::clamp<int64_t>(tokens->tokens() / 2, 1, options.least_tokens);
  const Split split = split_documents(tokens, possible);
  prepared.train = measure(*split.train, bytes_of);
  prepared.held_out = measure(*split.held_out, bytes_of);
}

void finish_shards(const TextEncoder& encoder, const PrepareOptions& options, const ShardManifest& manifest,
                   PreparedDataset& prepared) {
  if (options.measure_split) measure_parts(encoder, options.split, prepared);
  manifest.write(options.split, prepared, encoder);
}

}  // namespace

namespace {

// Columns are written by other programs for the tokens that lie beside them: with other tokens they would be wrong.
void refuse_stale_columns(const fs::path& prefix) {
  const fs::path columns = columns_folder(prefix);
  require<ConfigError>(!fs::exists(columns), columns.string(), " has values for the tokens of ", prefix.string(),
                       ".bin, which are to be made anew: remove this folder, or give the shards another prefix");
}

}  // namespace

std::string describe_replacing(const fs::path& prefix, const std::vector<std::string>& changes) {
  return fmt::format("{}.bin was made otherwise ({}): made anew", prefix.string(), fmt::join(changes, "; "));
}

std::string describe_dropping(const fs::path& prefix) {
  return cat(prefix.string(),
             ".partial.*, which an interrupted call left, was begun with other text or options, or is "
             "damaged: dropped, and tokenized anew");
}

PreparedDataset prepare_dataset(const std::vector<Source>& sources, const TextEncoder& encoder, const fs::path& prefix,
                                PrepareOptions options, const std::function<void(const PrepareProgress&)>& progress) {
  if (options.corpus.quarantine.empty()) options.corpus.quarantine = prefix.string() + ".quarantine.jsonl";
  const nlohmann::json key = shard_key(sources, encoder, options);
  const ShardManifest manifest(prefix, key);
  PreparedDataset prepared;
  prepared.prefix = prefix;
  prepared.reused = true;
  const auto found = manifest.find(options.split, prepared);
  const bool complete = found == ShardManifest::Found::shards && !options.measure_split;
  if (found == ShardManifest::Found::everything || complete) {
    CorpusTokenizer::remove_left_overs(prefix);
    return prepared;
  }
  if (found == ShardManifest::Found::nothing) {
    refuse_stale_columns(prefix);
    if (const auto changes = manifest.changes(); options.replacing && !changes.empty()) options.replacing(changes);
    TokenizeOptions tokenizing = tokenize_options(encoder, options);
    tokenizing.publishing = [&] {
      manifest.remove();
      std::error_code absent;
      fs::remove(prefix.string() + kLossSuffix + ".idx", absent);  // of conversations that lay here
    };
    CorpusTokenizer tokenizer(prefix, key, std::move(tokenizing));
    prepared.resumed_tokens = tokenizer.resumed_tokens();
    prepared.corpus = write_shards(sources, tokenizer, progress);
    prepared.reused = false;
    prepared.tokens = tokenizer.tokens();
    finish_shards(encoder, options, manifest, prepared);
    tokenizer.finish();
    return prepared;
  }
  finish_shards(encoder, options, manifest, prepared);
  return prepared;
}

}  // namespace witan
