#include "witan/fetch/hub.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <thread>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"

namespace witan::fetch {
namespace {

constexpr std::string_view kHub = "https://huggingface.co";
constexpr size_t kMostAnswerBytes = size_t{256} << 20;
constexpr size_t kMostPages = 100'000;

std::string api_url(const HubOptions& options, const Repository& repository) {
  return cat(options.endpoint, "/api/", kind_name(repository.kind), "s/", repository.name);
}

// The address of the page that follows, of a header as RFC 8288 has it: <https://…>; rel="next"
std::string next_page(const HttpResult& result) {
  static const std::regex next(R"re(<([^>]*)>\s*;[^,]*rel="?next"?)re");
  const std::string header = result.header("link");
  std::smatch match;
  return header.size() < 8192 && std::regex_search(header, match, next) ? match[1].str() : "";
}

// Mirrors pass the hub's own addresses on: the same page is asked of the mirror.
std::string at_endpoint(const HubOptions& options, const std::string& url) {
  const bool of_hub = url.starts_with(cat(kHub, "/"));
  return of_hub && options.endpoint != kHub ? options.endpoint + url.substr(kHub.size()) : url;
}

// A member that must be there, of its type.
template <class T>
T member(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  require<DataError>(found != object.end(), where, ": \"", name, "\" is missing");
  try {
    return found->get<T>();
  } catch (const Json::exception&) {
    throw DataError(cat(where, ": \"", name, "\" is not as it should be: ", clipped(found->dump())));
  }
}

// Paths of data_files: a text, a list of texts, or a list of {"split", "path"}, whose path is either of them.
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
  const Json& content = large ? item["lfs"] : item;
  file.size = member<uint64_t>(content, "size", of_file);
  file.digest = {large ? DigestKind::sha256 : DigestKind::git_blob, member<std::string>(content, "oid", of_file)};
  require<DataError>(is_digest(file.digest.kind, file.digest.hex), of_file, ": \"", clipped(file.digest.hex),
                     "\" is not the digest of a file");
  require<DataError>(file.size < uint64_t{1} << 50, of_file, ": ", file.size, " bytes is larger than a file can be");
  return file;
}

std::string without_secret(std::string text, const std::string& secret) {
  if (secret.empty()) return text;
  for (size_t at; (at = text.find(secret)) != std::string::npos;) text.replace(at, secret.size(), "***");
  return text;
}

std::string ways_in(const HubOptions& options, const Repository& repository) {
  const std::string page = cat(kHub, repository.kind == RepositoryKind::dataset ? "/datasets/" : "/", repository.name);
  return options.token.empty()
             ? cat("for a gated or private one accept its terms at ", page,
                   " and set HF_TOKEN to a token that may read it")
             : cat("accept its terms at ", page, ", and check that HF_TOKEN is valid and may read it");
}

}  // namespace

std::string kind_name(RepositoryKind kind) {
  return kind == RepositoryKind::dataset ? "dataset" : "model";
}

HubOptions hub_options_of_environment() {
  HubOptions options;
  if (const char* endpoint = std::getenv("HF_ENDPOINT"); endpoint != nullptr && *endpoint != '\0') {
    options.endpoint = endpoint;
    while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
    require<UsageError>(!origin_of(options.endpoint).empty(), "HF_ENDPOINT = ", clipped(options.endpoint),
                        " is not a URL of http or https: give the mirror's address, such as https://mirror.example");
  }
  if (const char* token = std::getenv("HF_TOKEN"); token != nullptr) options.token = token;
  while (!options.token.empty() && std::string_view(" \t\r\n").find(options.token.back()) != std::string_view::npos)
    options.token.pop_back();
  require<UsageError>(std::ranges::all_of(options.token, [](char c) { return c > ' ' && c < 127; }),
                      "HF_TOKEN holds characters that no token has, such as blanks or line ends: copy it again");
  require<UsageError>(options.token.empty() || options.endpoint.starts_with("https:") || is_loopback(options.endpoint),
                      "HF_ENDPOINT = ", options.endpoint,
                      " is not encrypted, and HF_TOKEN would be readable on its way: use https, or unset HF_TOKEN");
  return options;
}

HttpOptions http_options(const HubOptions& options) {
  return {options.token, origin_of(options.endpoint), options.connect_seconds, options.stall_seconds};
}

std::string file_url(const HubOptions& options, const Repository& repository, const std::string& commit,
                     const std::string& path) {
  return cat(options.endpoint, repository.kind == RepositoryKind::dataset ? "/datasets/" : "/", repository.name,
             "/resolve/", percent_encoded(commit, false), "/", percent_encoded(path, true));
}

void check_repository(const Repository& repository) {
  static const std::regex name(R"(([A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*)");
  require<UsageError>(repository.name.size() <= 200 && std::regex_match(repository.name, name) &&
                          repository.name.find("..") == std::string::npos,
                      "\"", clipped(repository.name), "\" is not the name of a ", kind_name(repository.kind),
                      " of the hub: give OWNER/NAME, such as HuggingFaceFW/fineweb-edu");
  require<UsageError>(!repository.revision.empty(), "the revision is empty: give a branch, a tag or a commit");
}

void check_file_name(const std::string& path) {
  const auto refuse = [&](const char* why) {
    throw DataError(cat("the hub lists a file named \"", clipped(path), "\", which ", why,
                        ": it is not fetched, nor is anything else of this repository; tell its owner"));
  };
  if (path.empty() || path.size() > 2048) refuse("is no name");
  if (path.starts_with('/')) refuse("is absolute");
  if (find_invalid_utf8(path) != std::string::npos) refuse("is not UTF-8");
  if (std::ranges::any_of(path, [](unsigned char c) { return c < 32 || c == 127; })) refuse("has control characters");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") refuse("could lead out of the folder it is fetched to");
    if (part.size() > 255) refuse("is too long for a file");
    if (part == kFetchFolder) refuse("is where witan keeps its own files");
    begin = end + 1;
  }
}

std::string describe_failure(const HubOptions& options, const Repository& repository, const HttpResult& result) {
  const std::string what = cat(kind_name(repository.kind), " ", repository.name), url = result.url;
  if (!result.failure.empty()) {
    const bool certificate = result.permanent && result.failure.find("ertificate") != std::string::npos;
    return cat(what, ": no whole answer of ", url, ": ", result.failure,
               certificate ? "; where a proxy or mirror has a certificate of its own, name its file in SSL_CERT_FILE"
                           : "; check the network, the proxy (https_proxy) and HF_ENDPOINT, and run the same command "
                             "again: it continues where it stopped");
  }
  std::string said = result.header("x-error-message");
  if (!said.empty()) said = cat(" (\"", clipped(without_secret(said, options.token), 200), "\")");
  const std::string answered = cat(what, ": ", url, " answers ", result.status, said),
                    code = result.header("x-error-code");
  if (code == "RevisionNotFound")
    return cat(answered, ": it has no revision \"", clipped(repository.revision), "\": see --revision");
  if (result.status == 403 || code == "GatedRepo")
    return cat(answered, ": it is not open to everybody: ", ways_in(options, repository));
  if (result.status == 401)
    return cat(answered, ": there is no such ", kind_name(repository.kind), ", or not for everybody: check the name; ",
               ways_in(options, repository));
  if (code == "EntryNotFound") return cat(answered, ": it has no such file or folder");
  if (result.status == 404)
    return cat(answered, ": there is no such ", kind_name(repository.kind), ": check the name, its capitals too (",
               repository.kind == RepositoryKind::dataset ? "a model is fetched with --model"
                                                          : "a dataset is fetched without --model",
               ")");
  if (result.status == 429)
    return cat(answered,
               ": too many requests; wait, use fewer --connections, or set HF_TOKEN, which raises the limit; "
               "the same command continues where it stopped");
  if (is_transient(result))
    return cat(answered, ": the hub is not well; run the same command again later: it continues where it stopped");
  return cat(answered, ", which is not an answer of the hub: check HF_ENDPOINT");
}

Hub::Hub(HubOptions options) : options_(std::move(options)), client_(http_options(options_)) {}

std::string Hub::get(const Repository& repository, const std::string& url, std::string* next) {
  std::mt19937 random(std::random_device{}());
  for (int failures = 1;; ++failures) {
    std::string body;
    const HttpReceiver receiver = {[](const HttpResult&) { return true; },
                                   [&](std::string_view bytes) {
                                     body += bytes;
                                     return body.size() <= kMostAnswerBytes;
                                   }};
    const HttpResult result = client_.get(url, std::nullopt, receiver);
    require<DataError>(body.size() <= kMostAnswerBytes, result.url, ": the answer is longer than ",
                       format_bytes(static_cast<double>(kMostAnswerBytes)), ": this is not the hub; check HF_ENDPOINT");
    if (result.status == 200 && result.failure.empty()) {
      if (next != nullptr) *next = next_page(result);
      return body;
    }
    require<DataError>(is_transient(result) && failures <= options_.retry.retries,
                       describe_failure(options_, repository, result));
    const double seconds = wait_seconds(options_.retry, failures, result, random);
    if (options_.note) options_.note(retry_note(result, seconds, failures, options_.retry));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

RepositoryState Hub::state(const Repository& repository) {
  check_repository(repository);
  const std::string url = cat(api_url(options_, repository), "/revision/", percent_encoded(repository.revision, false));
  const Json state = parse_json(get(repository, url, nullptr), url);
  require<DataError>(state.is_object(), url, ": the answer is no description of a repository; check HF_ENDPOINT");
  RepositoryState out{member<std::string>(state, "sha", url), subsets_of(state)};
  require<DataError>(is_digest(DigestKind::git_blob, out.commit), url, ": \"", clipped(out.commit),
                     "\" is not a commit; check HF_ENDPOINT");
  return out;
}

std::vector<HubFile> Hub::files(const Repository& repository, const std::string& commit, const std::string& folder) {
  std::string url = cat(api_url(options_, repository), "/tree/", commit, folder.empty() ? "" : "/",
                        percent_encoded(folder, true), "?recursive=true");
  std::vector<HubFile> files;
  for (size_t pages = 0; !url.empty(); ++pages) {
    require<DataError>(pages < kMostPages, "the list of files of ", repository.name, " does not end");
    std::string next;
    const std::string where = url.substr(0, url.find('?'));
    const Json page = parse_json(get(repository, url, &next), where);
    require<DataError>(page.is_array(), where, ": the answer is no list of files; check HF_ENDPOINT");
    for (const Json& item : page)
      if (member<std::string>(item, "type", where) == "file") files.push_back(file_of(item, where));
    url = next.empty() ? "" : at_endpoint(options_, resolve_url(url, next));
  }
  std::ranges::sort(files, {}, &HubFile::path);
  const auto twice = std::ranges::adjacent_find(files, {}, &HubFile::path);
  require<DataError>(twice == files.end(), "the hub lists ", twice == files.end() ? "" : twice->path, " twice");
  return files;
}

}  // namespace witan::fetch
