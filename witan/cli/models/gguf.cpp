#include "witan/cli/models/gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/cli/models/exported_run.h"
#include "witan/convert/gguf/gguf_config.h"
#include "witan/convert/hf/hf_config.h"
#include "witan/convert/hf/hf_folder.h"
#include "witan/convert/ledger.h"
#include "witan/formats/gguf.h"
#include "witan/tokenizer/files/tokenizer_files.h"
#include "witan/tokenizer/tokenizer.h"

namespace witan::cli {
namespace {

constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kChatTemplateFile = "chat_template.jinja";
constexpr const char* kSentencePieceFile = "tokenizer.model";
constexpr const char* kChatTemplate = "tokenizer.chat_template";

// Special tokens, by their keys in a GGUF file and in tokenizer_config.json.
struct NamedToken {
  const char* gguf;
  const char* hf;
};
constexpr NamedToken kNamedTokens[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                       {"tokenizer.ggml.eos_token_id", "eos_token"},
                                       {"tokenizer.ggml.eot_token_id", "eot_token"},
                                       {"tokenizer.ggml.padding_token_id", "pad_token"},
                                       {"tokenizer.ggml.unknown_token_id", "unk_token"}};
constexpr NamedToken kBeginAndEnd[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},  // in config.json
                                       {"tokenizer.ggml.eos_token_id", "eos_token_id"}};
constexpr NamedToken kAddedAround[] = {{"tokenizer.ggml.add_bos_token", "add_bos_token"},
                                       {"tokenizer.ggml.add_eos_token", "add_eos_token"}};

Json json_file(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return Json::object();
  Json json = parse_json(read_file(path), path.string());
  return json.is_object() ? json : Json::object();
}

// The text of a token, which is given as a string or as an object with its content.
std::optional<std::string> token_text(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    return (*found)["content"].get<std::string>();
  return std::nullopt;
}

std::optional<std::string> chat_template(const Json& config, const fs::path& companions) {
  std::error_code none;
  if (fs::is_regular_file(companions / kChatTemplateFile, none)) return read_file(companions / kChatTemplateFile);
  const auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) return found->get<std::string>();
  return std::nullopt;
}

// The file of an imported SentencePiece model has more information than the tokenizer.json made from it.
TokenizerSpec exact_spec(const std::string& tokenizer, const fs::path& companions) {
  TokenizerSpec spec = parse_tokenizer_json(tokenizer, "tokenizer.json");
  std::error_code none;
  const fs::path model = companions / kSentencePieceFile;
  if (spec.byte_level || !spec.sentencepiece.empty() || !fs::is_regular_file(model, none)) return spec;
  TokenizerSpec exact = read_tokenizer(model);
  for (size_t id = 0; id < exact.tokens.size(); ++id)
    if (id >= spec.tokens.size() || spec.tokens[id] != exact.tokens[id]) return spec;
  return exact;
}

void put_named_tokens(const Json& config, const Tokenizer& tokenizer, GgufMetadata& metadata) {
  for (const NamedToken& token : kNamedTokens)
    if (const auto text = token_text(config, token.hf))
      if (const auto id = tokenizer.token_id(*text)) metadata.put_u32(token.gguf, *id);
  const NamedToken& end = kNamedTokens[1];
  if (metadata.find(end.gguf) == nullptr)
    if (const auto id = tokenizer.end_of_text()) metadata.put_u32(end.gguf, *id);
  for (const NamedToken& around : kAddedAround) {
    const auto found = config.find(around.hf);
    const bool first = &around == &kAddedAround[0];
    metadata.put_flag(around.gguf, !(first ? tokenizer.spec().before : tokenizer.spec().after).empty() ||
                                       (found != config.end() && found->is_boolean() && found->get<bool>()));
  }
}

constexpr const char *kSections = "rope.dimension_sections", *kSectionsInHf = "mrope_section",
                     *kImageLayers = "n_deepstack_layers";
constexpr size_t kMostSections = 4;

// The sections in a config.json's object of a text decoder; null if it has none.
const Json* sections_in(const Json& text) {
  for (const char* spelling : {"rope_scaling", "rope_parameters"})
    if (const auto rope = text.find(spelling); rope != text.end() && rope->is_object() && rope->contains(kSectionsInHf))
      return &rope->at(kSectionsInHf);
  return nullptr;
}

// Readers end an answer at the token that ends texts, or at the one that ends turns. Those that know only the former
// must also stop at the end of a turn.
void name_chat_tokens(const ChatTokens& chat, const Tokenizer& tokenizer, Json& config) {
  if (!chat.bos_token.empty()) config["bos_token"] = chat.bos_token;
  if (!chat.end_of_turn) return;
  const std::string end(tokenizer.token_bytes(*chat.end_of_turn));
  config["eos_token"] = end;
  config["eot_token"] = end;
}

}  // namespace

std::optional<std::string> tokenizer_of_gguf(const GgufWeights& weights, std::FILE* err) try {
  const TokenizerSpec spec = parse_gguf_vocabulary(weights.file().metadata());
  const Tokenizer checked(spec);
  return write_tokenizer_json(spec);
} catch (const Error& error) {
  fmt::print(err, "warning: no tokenizer: {}. `witan generate` and `witan eval` need one\n", error.what());
  return std::nullopt;
}

void write_companions_of_gguf(const GgufWeights& weights, const fs::path& folder) {
  fs::create_directories(folder);
  const GgufMetadata& metadata = weights.file().metadata();
  auto model = nlohmann::ordered_json::parse(
      write_hf_config(weights.architecture(), weights.model(), weights.positions(), weights.model().dtype));
  for (const NamedToken& token : kBeginAndEnd) {
    const auto id = metadata.integer(token.gguf);
    model[token.hf] = id ? nlohmann::ordered_json(*id) : nlohmann::ordered_json();  // null, not the default token
  }
  const std::string sections = cat(gguf_architecture(weights.architecture()), ".", kSections);
  if (std::vector<int64_t> given = metadata.integers(sections); !given.empty()) {
    if (given.size() == kMostSections && given.back() == 0) given.pop_back();  // transformers has three
    model["rope_parameters"][kSectionsInHf] = given;
  }
  write_file_atomically(folder / kHfConfig, model.dump(2) + "\n");
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  const auto tokens = metadata.texts("tokenizer.ggml.tokens");
  for (const NamedToken& token : kNamedTokens)
    if (const auto id = metadata.integer(token.gguf); id && *id >= 0 && *id < static_cast<int64_t>(tokens.size()))
      config[token.hf] = replace_invalid_utf8(tokens[static_cast<size_t>(*id)]);
  for (const NamedToken& around : kAddedAround)
    if (const auto flag = metadata.flag(around.gguf)) config[around.hf] = *flag;
  if (const auto text = metadata.text(kChatTemplate)) config["chat_template"] = replace_invalid_utf8(*text);
  if (!config.empty()) write_file_atomically(folder / kTokenizerConfig, config.dump(2) + "\n");
}

GgufMetadata gguf_vocabulary_of(const ExportedRun& run) {
  GgufMetadata metadata;
  const auto text = run.tokenizer();
  if (!text) {
    metadata.put_text("tokenizer.ggml.model", "no_vocab");
    return metadata;
  }
  const fs::path companions = run.folder / kCompanionFolder;
  const TokenizerSpec spec = exact_spec(*text, companions);
  write_gguf_vocabulary(spec, run.config.model.vocab_size, metadata);
  const Tokenizer tokenizer(spec);
  Json config = json_file(companions / kTokenizerConfig);
  const ChatTokens chat = chat_tokens(run, tokenizer);
  name_chat_tokens(chat, tokenizer, config);
  put_named_tokens(config, tokenizer, metadata);
  const auto found = chat.chat_template.empty() ? chat_template(config, companions) : chat.chat_template;
  if (found) metadata.put_text(kChatTemplate, *found);
  return metadata;
}

void keep_image_keys(const ExportedRun& run, const Architecture& architecture, GgufMetadata& metadata) {
  const Json config = json_file(run.folder / kCompanionFolder / kHfConfig);
  const Json& text = config.contains(kTextConfig) ? config[kTextConfig] : config;
  const auto type = text.find("model_type");
  if (type == text.end() || !type->is_string() || find_architecture(type->get<std::string>()) != &architecture) return;
  const std::string prefix = cat(gguf_architecture(architecture), ".");
  if (const Json* const given = sections_in(text)) {
    GgufValue sections{.type = GgufType::i32, .array = true};
    const bool numbers = given->is_array() && given->size() <= kMostSections &&
                         std::ranges::all_of(*given, [](const Json& one) { return one.is_number_unsigned(); });
    require<ConfigError>(numbers, (run.folder / kCompanionFolder / kHfConfig).string(), ": ", kSectionsInHf, " = ",
                         clipped(given->dump()), ": must be a list of up to ", kMostSections, " whole numbers");
    for (const Json& one : *given) sections.integers.push_back(one.get<int64_t>());
    sections.integers.resize(kMostSections, 0);
    metadata.put(prefix + kSections, std::move(sections));
  }
  const Json::json_pointer layers("/vision_config/deepstack_visual_indexes");
  if (config.contains(layers) && config.at(layers).is_array())
    metadata.put_u32(prefix + kImageLayers, static_cast<int64_t>(config.at(layers).size()));
}

}  // namespace witan::cli
