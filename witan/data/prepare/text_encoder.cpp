#include "witan/data/prepare/text_encoder.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/models/tokenizer_spec.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan {

std::string hash_of_whole_texts(const Tokenizer& tokenizer) {
  const TokenizerSpec& spec = tokenizer.spec();
  std::string hash = tokenizer.hash();
  if (spec.before.empty() && spec.after.empty()) return hash;
  for (const int32_t id : spec.before) hash += cat(" ", id);
  hash += " text";
  for (const int32_t id : spec.after) hash += cat(" ", id);
  return hash;
}

TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer) {
  const auto end_of_text = tokenizer->end_of_text();
  return {[tokenizer, end_of_text](std::string_view text, std::vector<int32_t>& out) {
            const std::vector<int32_t> tokens = tokenizer->encode_whole(text);
            const std::vector<int32_t>& after = tokenizer->spec().after;
            const bool ends = end_of_text && !after.empty() && after.back() == *end_of_text;
            out.insert(out.end(), tokens.begin(), tokens.end() - ends);
          },
          [tokenizer](int32_t token) { return tokenizer->text_bytes(token); },
          tokenizer->vocab_size(),
          end_of_text,
          hash_of_whole_texts(*tokenizer),
          [tokenizer](std::string_view text, std::span<const TextSpan> literal, std::vector<int32_t>& out) {
            tokenizer->encode_to(text, out, literal);
          },
          vocabulary_digest(tokenizer->spec())};
}

namespace {

enum class Library { hugging_face, sentencepiece, gpt2 };

struct TokenizerType {
  const char* name;
  Library library;
};
constexpr std::array kTypes = {TokenizerType{"HuggingFaceTokenizer", Library::hugging_face},
                               TokenizerType{"SentencePieceTokenizer", Library::sentencepiece},
                               TokenizerType{"GPTSentencePieceTokenizer", Library::sentencepiece},
                               TokenizerType{"Llama2Tokenizer", Library::sentencepiece},
                               TokenizerType{"GPT2BPETokenizer", Library::gpt2}};

struct RefusedType {
  const char *name, *reason;
};
constexpr std::array kRefusedTypes = {
    RefusedType{"BertWordPieceLowerCase", "WordPiece is not read, and BERT's samples are not trained on"},
    RefusedType{"BertWordPieceCase", "WordPiece is not read, and BERT's samples are not trained on"},
    RefusedType{"TikTokenizer",
                "Megatron-LM's ids of it are shifted by 1000 special tokens of its own; --tokenizer FILE reads rank "
                "files (.tiktoken) and Mistral's tekken.json with the ids of their models"},
    RefusedType{"NullTokenizer", "its rows hold ids, not text; give the tokenizer of the model, --tokenizer FILE"},
    RefusedType{"MultimodalTokenizer", "images are not read; give --tokenizer-type HuggingFaceTokenizer for its text"}};

Library library_of(const std::string& type) {
  std::string names;
  for (const TokenizerType& one : kTypes) {
    if (type == one.name) return one.library;
    names += cat(names.empty() ? "" : ", ", one.name);
  }
  for (const RefusedType& one : kRefusedTypes)
    require<ConfigError>(type != one.name, "--tokenizer-type ", type, " is not supported: ", one.reason);
  throw ConfigError(cat("--tokenizer-type ", clipped(type), " is unknown; there are ", names,
                        "; or give --tokenizer FILE, whose content tells its kind"));
}

Tokenizer load_tokenizer(const MegatronTokenizerOptions& options, Library library) {
  if (library == Library::gpt2 && options.model.empty()) {
    require<ConfigError>(!options.vocab_file.empty() && !options.merge_file.empty(), "--tokenizer-type ", options.type,
                         " needs --vocab-file vocab.json and --merge-file merges.txt");
    return Tokenizer(parse_vocab_and_merges(read_file(options.vocab_file), options.vocab_file.string(),
                                            read_file(options.merge_file), options.merge_file.string(), ""));
  }
  require<ConfigError>(!options.model.empty(), "--tokenizer-type ", options.type,
                       " needs --tokenizer-model FILE: a folder with tokenizer.json, or the file itself");
  require<ConfigError>(
      fs::exists(options.model), options.type.empty() ? "--tokenizer " : "--tokenizer-model ", options.model.string(),
      ": there is no such file or folder; names of the hub are not looked up: fetch its files and give "
      "their folder");
  return Tokenizer::load(options.model);
}

// "eos_token": "</s>" or {"content": "</s>", ...}; empty where there is none.
std::string eos_token_in(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::is_regular_file(path)) return {};
  const auto config = parse_json(read_file(path), path.string());
  if (!config.is_object() || !config.contains("eos_token")) return {};
  const auto& token = config["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token["content"].is_string()
             ? token["content"].get<std::string>()
             : std::string();
}

int32_t eod_of(const Tokenizer& tokenizer, const MegatronTokenizerOptions& options) {
  if (!options.eod_token.empty()) {
    const auto id = tokenizer.token_id(options.eod_token);
    require<ConfigError>(id.has_value(), "--eod-token ", clipped(options.eod_token),
                         ": the tokenizer has no such token");
    return *id;
  }
  const auto found = megatron_eod(tokenizer, options.model.empty() ? options.vocab_file : options.model);
  require<ConfigError>(found.has_value(),
                       "--append-eod: the tokenizer names no end of text; say which token ends a document: "
                       "--eod-token TOKEN");
  return *found;
}

}  // namespace

std::optional<int32_t> megatron_eod(const Tokenizer& tokenizer, const fs::path& file_or_folder) {
  const std::string name =
      eos_token_in(fs::is_directory(file_or_folder) ? file_or_folder : file_or_folder.parent_path());
  if (!name.empty())
    if (const auto id = tokenizer.token_id(name)) return id;
  return tokenizer.end_of_text();
}

TextEncoder megatron_encoder(const MegatronTokenizerOptions& options) {
  const Library library = options.type.empty() ? Library::sentencepiece : library_of(options.type);
  const auto tokenizer = std::make_shared<const Tokenizer>(load_tokenizer(options, library));
  TextEncoder encoder = text_encoder(tokenizer);
  const bool special = library != Library::sentencepiece;
  if (options.bare) encoder.hash = tokenizer->hash();
  if (special) encoder.hash += " with special tokens";
  // Megatron-LM puts an end of text after the one that the tokenizer may have put there.
  encoder.encode = [tokenizer, special, bare = options.bare](std::string_view text, std::vector<int32_t>& out) {
    const auto tokens = bare ? tokenizer->encode(text, special) : tokenizer->encode_whole(text, special);
    out.insert(out.end(), tokens.begin(), tokens.end());
  };
  encoder.end_of_text = options.append_eod ? std::optional(eod_of(*tokenizer, options)) : std::nullopt;
  return encoder;
}

}  // namespace witan
