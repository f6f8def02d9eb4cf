#include <nlohmann/json.hpp>
#include <regex>
#include <type_traits>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/fetch/hub.h"

namespace witan::fetch {
namespace {

// A required member of the type T: a string or an integer.
template <class T>
T member(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  require<DataError>(found != object.end(), where, ": \"", name, "\" is missing");
  const bool fits = std::is_same_v<T, std::string> ? found->is_string() : found->is_number_integer();
  require<DataError>(fits, where, ": \"", name, "\" must be ",
                     std::is_same_v<T, std::string> ? "a string" : "an integer", ", but is ", clipped(found->dump()));
  return found->get<T>();
}

// Paths in data_files: a string, a list of strings, or a list of {"split", "path"} with either of them as path.
void add_patterns(std::vector<std::string>& patterns, const Json& files) {
  if (files.is_string())
    patterns.push_back(files.get<std::string>());
  else if (files.is_array())
    for (const Json& item : files) add_patterns(patterns, item);
  else if (files.is_object() && files.contains("path"))
    add_patterns(patterns, files["path"]);
}

std::vector<Subset> subsets_of(const Json& state) {
  std::vector<Subset> subsets;
  const auto card = state.find("cardData");
  if (card == state.end() || !card->is_object() || !card->contains("configs")) return subsets;
  const Json& configs = (*card)["configs"];
  if (!configs.is_array()) return subsets;
  for (const Json& config : configs) {
    if (!config.is_object() || !config.contains("config_name") || !config["config_name"].is_string()) continue;
    Subset subset{config["config_name"].get<std::string>(), {}};
    if (config.contains("data_files"))
      add_patterns(subset.patterns, config["data_files"]);
    else if (config.contains("data_dir") && config["data_dir"].is_string())
      subset.patterns.push_back(config["data_dir"].get<std::string>() + "/**");
    subsets.push_back(std::move(subset));
  }
  return subsets;
}

HubFile file_of(const Json& item, const std::string& where) {
  HubFile file{member<std::string>(item, "path", where), 0, {}};
  check_file_name(file.path);
  const std::string of_file = cat(where, ": ", file.path);
  const bool large = item.contains("lfs") && item["lfs"].is_object();
  require<DataError>(large || !item.contains("xetHash"), of_file,
                     " is stored with Xet, and listed without the SHA-256 of its content: it cannot be verified; check "
                     "HF_ENDPOINT");
  const Json& content = large ? item["lfs"] : item;
  file.size = member<uint64_t>(content, "size", of_file);
  file.digest = {large ? DigestKind::sha256 : DigestKind::git_blob, member<std::string>(content, "oid", of_file)};
  require<DataError>(is_digest(file.digest.kind, file.digest.hex), of_file, ": \"", clipped(file.digest.hex),
                     "\" is not the digest of a file");
  require<DataError>(file.size < uint64_t{1} << 50, of_file, ": ", file.size, " bytes is larger than a file can be");
  return file;
}

}  // namespace

RepositoryState parse_state(std::string_view text, const std::string& where) {
  const Json state = parse_json(text, where);
  require<DataError>(state.is_object(), where, ": the response does not describe a repository; check HF_ENDPOINT");
  RepositoryState out{{}, member<std::string>(state, "sha", where), subsets_of(state)};
  if (state.contains("id") && state["id"].is_string()) out.name = state["id"].get<std::string>();
  require<DataError>(is_digest(DigestKind::git_blob, out.commit), where, ": \"", clipped(out.commit),
                     "\" is not a commit; check HF_ENDPOINT");
  return out;
}

std::vector<HubFile> parse_files(std::string_view text, const std::string& where) {
  const Json page = parse_json(text, where);
  require<DataError>(page.is_array(), where, ": the response is not a list of files; check HF_ENDPOINT");
  std::vector<HubFile> files;
  for (const Json& item : page)
    if (member<std::string>(item, "type", where) == "file") files.push_back(file_of(item, where));
  return files;
}

std::string next_page(const HttpResult& result) {
  static const std::regex next(R"re(<([^>]*)>\s*;[^,]*rel="?next"?)re");
  const std::string header = result.header("link");
  std::smatch match;
  return header.size() < 8192 && std::regex_search(header, match, next) ? match[1].str() : "";
}

}  // namespace witan::fetch
