#include "witan/data/prepare/shard_manifest.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/output_file.h"
#include "witan/base/hash.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/data/datasets/conversation_dataset.h"
#include "witan/tokenizer/models/tokenizer_spec.h"

namespace witan {
namespace {

fs::path prefix_of(const fs::path& shards) {
  const fs::path extension = shards.extension();
  return extension == ".bin" || extension == ".idx" ? fs::path(shards).replace_extension() : shards;
}

// Something may stand after the hash of the tokenizer (ShardTokenizer).
bool is_of(const ShardTokenizer& shards, const Tokenizer& tokenizer) {
  return shards.vocab_size == tokenizer.vocab_size() && shards.hash.starts_with(tokenizer.hash());
}

// The tokenizer stored with the shards, if they were made with it.
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

// The quarantine file is not among them: every command that finds unusable rows writes it anew, so nobody loses it.
std::vector<fs::path> files_of_shards(const fs::path& prefix) {
  std::vector<fs::path> files;
  for (const char* suffix : {".bin", ".idx", ".json"}) files.emplace_back(prefix.string() + suffix);
  for (const char* suffix : {".bin", ".idx"}) files.emplace_back(prefix.string() + kLossSuffix + suffix);
  return files;
}

void refuse_sources(const fs::path& file, const std::vector<Source>& sources, const std::string& option) {
  std::error_code absent;
  if (!fs::exists(file, absent)) return;
  for (const Source& source : sources)
    require<ConfigError>(!fs::equivalent(file, source.path, absent), file.string(),
                         " is read, and this command would write its shards there: give another ", option);
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CorpusStatistics, documents, empty_documents, text_bytes, rows, bad_rows, replaced)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartSize, documents, tokens, bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SplitOptions, held_out_fraction, least_tokens, seed)

namespace {

constexpr const char* kFormat = "witan-token-shards";
constexpr int kManifestVersion = 1;
constexpr uint64_t kMostManifestBytes = 1 << 30;
// Larger shards are compared by size and index alone: reading them whole would delay every start.
constexpr uint64_t kMostHashedBytes = 1 << 30;

// Read part by part: mapped, large shards would count as memory of this process.
std::string hash_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> part(1 << 20);
  Hasher hasher;
  do {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    hasher.update(part.data(), static_cast<size_t>(file.gcount()));
  } while (file);
  require<IoError>(file.eof(), "cannot read ", path.string());
  return hasher.hex();
}

nlohmann::json describe(const fs::path& path, bool with_hash) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  require<IoError>(!error, "cannot read ", path.string(), ": ", error.message());
  nlohmann::json description = {{"bytes", bytes}};
  if (with_hash) description["xxh3_128"] = hash_of_file(path);
  return description;
}

using Changes = std::vector<std::string>;

const nlohmann::json& at_or_null(const nlohmann::json& object, const std::string& key) {
  static const nlohmann::json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// The text: each file of which something else is known now.
void add_source_changes(const nlohmann::json& then, const nlohmann::json& now, Changes& changes) {
  std::map<std::string, nlohmann::json> before;
  for (const nlohmann::json& source : then) before[source.at("path").get<std::string>()] = source;
  const size_t known = changes.size();
  for (const nlohmann::json& source : now) {
    const std::string path = source.at("path").get<std::string>();
    const auto found = before.find(path);
    if (found == before.end())
      changes.push_back(path + " was not among its text");
    else if (found->second != source)
      changes.push_back(path + " has changed since");
    if (found != before.end()) before.erase(found);
  }
  for (const auto& [path, source] : before) changes.push_back("it also had the text of " + path);
  if (changes.size() == known && then != now) changes.emplace_back("its files were in another order");
}

// An end of text where there was none, or none where there was one, is what append_eod asks for.
void add_tokenizer_changes(const nlohmann::json& then, const nlohmann::json& now, Changes& changes) {
  const nlohmann::json &old_end = then.at("end_of_text"), &new_end = now.at("end_of_text");
  if (then.at("hash") != now.at("hash") || then.at("vocab_size") != now.at("vocab_size"))
    changes.emplace_back("tokenizer");
  if (old_end.is_null() != new_end.is_null())
    changes.emplace_back("append_eod");
  else if (old_end != new_end)
    changes.emplace_back("eod_token");
}

void add_option_changes(const nlohmann::json& then, const nlohmann::json& now, Changes& changes) {
  std::set<std::string> keys;
  for (const nlohmann::json* options : {&then, &now})
    for (const auto& [key, value] : options->items()) keys.insert(key);
  for (const std::string& key : keys)
    if (at_or_null(then, key) != at_or_null(now, key)) changes.push_back(key);
}

// Whether existing files have the sizes in the manifest.
bool has_sizes(const nlohmann::json& manifest, const fs::path& prefix) {
  for (const auto& [suffix, description] : manifest.at("files").items()) {
    std::error_code absent;
    const uint64_t bytes = fs::file_size(cat(prefix.string(), ".", suffix), absent);
    if (!absent && bytes != description.at("bytes").get<uint64_t>()) return false;
  }
  return true;
}

// read(manifest) of shards whose files have the sizes in their manifest; nothing if there are none.
template <class Read>
auto from_manifest(const fs::path& prefix, const Read& read)
    -> std::optional<std::invoke_result_t<Read, const nlohmann::json&>> try {
  const fs::path path = prefix.string() + ".json";
  const nlohmann::json manifest = parse_json(read_file(path, kMostManifestBytes), path.string());
  if (manifest.at("format") != kFormat) return std::nullopt;
  if (!has_sizes(manifest, prefix)) return std::nullopt;
  return read(manifest);
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
} catch (const CorruptionError&) {
  return std::nullopt;
} catch (const IoError&) {
  return std::nullopt;
}

}  // namespace

nlohmann::json sources_key(const std::vector<Source>& sources) {
  nlohmann::json files = nlohmann::json::array();
  for (const Source& source : sources)
    files.push_back({{"path", replace_invalid_utf8(source.path.string())},
                     {"kind", name_of(source.kind)},
                     {"bytes", source.bytes},
                     {"modified_ns", source.modified_ns}});
  return files;
}

nlohmann::json options_key(const CorpusOptions& options) {
  nlohmann::json key = {{"json_key", options.json_key},
                        {"document_bytes", options.document_bytes},
                        {"row_bytes", options.row_bytes},
                        {"bad_row_share", options.bad_row_share},
                        {"replace_invalid_utf8", options.replace_invalid_utf8}};
  if (!options.other_keys.empty()) key["other_keys"] = options.other_keys;
  if (options.visit_empty) key["visit_empty"] = true;
  if (options.conversations) key["conversations"] = options.conversations->hash();
  return key;
}

nlohmann::json shard_key(const std::vector<Source>& sources, const TextEncoder& encoder,
                         const PrepareOptions& options) {
  nlohmann::json tokenizer = {{"hash", encoder.hash}, {"vocab_size", encoder.vocab_size}, {"end_of_text", nullptr}};
  if (encoder.end_of_text) tokenizer["end_of_text"] = *encoder.end_of_text;
  nlohmann::json how = options_key(options.corpus);
  if (!options.selection.include.empty()) how["include"] = options.selection.include;
  if (!options.selection.exclude.empty()) how["exclude"] = options.selection.exclude;
  return {{"sources", sources_key(sources)}, {"tokenizer", tokenizer}, {"options", std::move(how)}};
}

std::optional<std::vector<std::string>> sources_of_shards(const fs::path& prefix) {
  return from_manifest(prefix, [](const nlohmann::json& manifest) {
    std::vector<std::string> paths;
    for (const nlohmann::json& source : manifest.at("key").at("sources"))
      paths.push_back(source.at("path").get<std::string>());
    return paths;
  });
}

std::optional<ShardTokenizer> tokenizer_of_manifest(const fs::path& prefix) {
  return from_manifest(prefix, [](const nlohmann::json& manifest) {
    const nlohmann::json& tokenizer = manifest.at("key").at("tokenizer");
    return ShardTokenizer{tokenizer.at("hash").get<std::string>(), tokenizer.at("vocab_size").get<int64_t>(),
                          manifest.value("vocabulary", ""), manifest.value("tokenizer_file", "")};
  });
}

ShardManifest::ShardManifest(const fs::path& prefix, nlohmann::json key)
    : prefix_(prefix), path_(prefix.string() + ".json"), key_(std::move(key)) {}

nlohmann::json ShardManifest::describe_files(bool with_bin_hash) const {
  nlohmann::json files = {{"bin", describe(prefix_.string() + ".bin", with_bin_hash)},
                          {"idx", describe(prefix_.string() + ".idx", true)}};
  const std::string loss = prefix_.string() + kLossSuffix;
  if (fs::exists(loss + ".idx")) {
    files["loss.bin"] = describe(loss + ".bin", with_bin_hash);
    files["loss.idx"] = describe(loss + ".idx", true);
  }
  return files;
}

ShardManifest::Found ShardManifest::find(const SplitOptions& split, PreparedDataset& prepared) const try {
  const nlohmann::json manifest = parse_json(read_file(path_, kMostManifestBytes), path_.string());
  if (manifest.at("format") != kFormat || manifest.at("version") != kManifestVersion || manifest.at("key") != key_)
    return Found::nothing;
  const nlohmann::json& files = manifest.at("files");
  if (files != describe_files(files.at("bin").contains("xxh3_128"))) return Found::nothing;
  manifest.at("statistics").get_to(prepared.corpus);
  manifest.at("tokens").get_to(prepared.tokens);
  const nlohmann::json& parts = manifest.at("split");
  if (parts.at("options").get<SplitOptions>() != split) return Found::shards;
  parts.at("train").get_to(prepared.train);
  parts.at("held_out").get_to(prepared.held_out);
  return Found::everything;
} catch (const nlohmann::json::exception&) {
  return Found::nothing;
} catch (const CorruptionError&) {
  return Found::nothing;
} catch (const IoError&) {
  return Found::nothing;
}

std::vector<std::string> ShardManifest::changes() const try {
  constexpr size_t kMost = 4;
  if (!fs::exists(prefix_.string() + ".bin")) return {};
  const nlohmann::json manifest = parse_json(read_file(path_, kMostManifestBytes), path_.string());
  const nlohmann::json& then = manifest.at("key");
  std::vector<std::string> changes;
  add_tokenizer_changes(then.at("tokenizer"), key_.at("tokenizer"), changes);
  add_option_changes(then.at("options"), key_.at("options"), changes);
  add_source_changes(then.at("sources"), key_.at("sources"), changes);
  if (changes.empty()) changes.emplace_back("its files have changed since");
  if (changes.size() <= kMost) return changes;
  const size_t more = changes.size() - kMost;
  changes.resize(kMost);
  changes.push_back(cat("and ", more, " more"));
  return changes;
} catch (const nlohmann::json::exception&) {
  return {};
} catch (const CorruptionError&) {
  return {};
} catch (const IoError&) {
  return {};
}

void ShardManifest::write(const SplitOptions& split, const PreparedDataset& prepared,
                          const TextEncoder& encoder) const {
  const bool hash_bin = fs::file_size(prefix_.string() + ".bin") <= kMostHashedBytes;
  nlohmann::json manifest = {
      {"format", kFormat},
      {"version", kManifestVersion},
      {"key", key_},
      {"statistics", prepared.corpus},
      {"tokens", prepared.tokens},
      {"split", {{"options", split}, {"train", prepared.train}, {"held_out", prepared.held_out}}},
      {"files", describe_files(hash_bin)}};
  if (!encoder.vocabulary.empty()) manifest["vocabulary"] = encoder.vocabulary;
  if (!encoder.file.empty()) manifest["tokenizer_file"] = replace_invalid_utf8(encoder.file);
  write_file_atomically(path_, manifest.dump(1) + "\n");
}

void ShardManifest::remove() const {
  std::error_code ignored;  // absent, as it should be
  fs::remove(path_, ignored);
}

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

void check_own_shards(const fs::path& prefix, const std::vector<Source>& sources, const std::string& option) {
  std::vector<fs::path> files = files_of_shards(prefix);
  for (const fs::path& file : files) refuse_sources(file, sources, option);
  const fs::path quarantine = prefix.string() + ".quarantine.jsonl";
  refuse_sources(quarantine, sources, option);
  quarantine_file(quarantine).require_free();
  for (const char* suffix : {".partial.json", ".partial.lock"})
    if (fs::exists(prefix.string() + suffix)) return;
  const auto made_of = sources_of_shards(prefix);
  if (!made_of) {
    for (const fs::path& file : files) refuse_existing(file, option);
    return;
  }
  const bool same = std::ranges::any_of(sources, [&](const Source& source) {
    return std::ranges::find(*made_of, replace_invalid_utf8(source.path.string())) != made_of->end();
  });
  require<ConfigError>(same, prefix.string(), ".bin has the tokens of other text, of ",
                       made_of->empty() ? "" : made_of->front(), made_of->size() > 1 ? " and more" : "",
                       ": remove it and ", prefix.string(), ".json, or give another ", option);
}

}  // namespace witan
