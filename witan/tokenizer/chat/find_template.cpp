#include <nlohmann/json.hpp>

#include "witan/base/json.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan {
namespace {

constexpr uint64_t kMostConfigBytes = 64 << 20;

Json read_json(const fs::path& path) {
  std::error_code absent;
  if (!fs::is_regular_file(path, absent)) return Json::object();
  Json json = parse_json(read_file(path, kMostConfigBytes), path.string());
  require<CorruptionError>(json.is_object(), path.string(), ": not a JSON object");
  return json;
}

// A token is given as a string, or as an object with the string as "content".
std::string token_of(const fs::path& folder, const char* key) {
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Json config = read_json(folder / file);
    const auto found = config.find(key);
    if (found == config.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
      return (*found)["content"].get<std::string>();
  }
  return {};
}

FoundChatTemplate with_tokens(ChatTemplate chat, const fs::path& folder) {
  return {std::move(chat), token_of(folder, "bos_token"), token_of(folder, "eos_token")};
}

// The template in a JSON file: a string, or a list of {"name", "template"}, from which this takes "default".
std::optional<ChatTemplate> in_json(const fs::path& path) {
  const Json config = read_json(path);
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return ChatTemplate(found->get<std::string>(), path.string() + ": chat_template");
  require<CorruptionError>(found->is_array(), path.string(), ": chat_template must be a string or a list");
  for (const Json& one : *found)
    if (one.is_object() && one.value("name", Json()) == "default" && one.contains("template") &&
        one["template"].is_string())
      return ChatTemplate(one["template"].get<std::string>(), path.string() + ": chat_template");
  throw DataError(cat(path.string(),
                      ": chat_template has several templates, but none is named \"default\": give one "
                      "of them as a file (--chat-template FILE)"));
}

}  // namespace

std::optional<FoundChatTemplate> find_chat_template(const fs::path& folder) {
  std::error_code absent;
  for (const fs::path& place : {folder, folder / "hf"}) {
    const fs::path file = place / "chat_template.jinja";
    if (fs::is_regular_file(file, absent))
      return with_tokens(ChatTemplate(read_file(file, kMostConfigBytes), file.string()), place);
    if (auto chat = in_json(place / "tokenizer_config.json")) return with_tokens(std::move(*chat), place);
  }
  return std::nullopt;
}

FoundChatTemplate read_chat_template(const fs::path& file) {
  if (file.extension() != ".json")
    return with_tokens(ChatTemplate(read_file(file, kMostConfigBytes), file.string()), file.parent_path());
  auto chat = in_json(file);
  require<DataError>(chat.has_value(), file.string(), ": has no chat_template");
  return with_tokens(std::move(*chat), file.parent_path());
}

}  // namespace witan
