#include "witan/fetch/hub.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <regex>
#include <thread>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::fetch {
namespace {

constexpr std::string_view kHub = "https://huggingface.co";
constexpr size_t kMostAnswerBytes = size_t{256} << 20;
constexpr size_t kMostPages = 100'000;

std::string api_url(const HubOptions& options, const Repository& repository) {
  return cat(options.endpoint, "/api/", kind_name(repository.kind), "s/", repository.name);
}

// Mirrors pass on the hub's own URLs; this requests the same page from the mirror.
std::string at_endpoint(const HubOptions& options, const std::string& url) {
  const bool of_hub = url.starts_with(cat(kHub, "/"));
  return of_hub && options.endpoint != kHub ? options.endpoint + url.substr(kHub.size()) : url;
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
                        " is not an http or https URL: give the mirror's address, such as https://mirror.example");
  }
  if (const char* token = std::getenv("HF_TOKEN"); token != nullptr) options.token = token;
  while (!options.token.empty() && std::string_view(" \t\r\n").find(options.token.back()) != std::string_view::npos)
    options.token.pop_back();
  require<UsageError>(
      std::ranges::all_of(options.token, [](char c) { return c > ' ' && c < 127; }),
      "HF_TOKEN contains characters that tokens never have, such as blanks or line ends: copy it again");
  require<UsageError>(options.token.empty() || options.endpoint.starts_with("https:") || is_loopback(options.endpoint),
                      "HF_ENDPOINT = ", options.endpoint,
                      " is not encrypted, so HF_TOKEN would be sent in the clear: use https, or unset HF_TOKEN");
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
                        ": nothing of this repository is fetched; tell its owner"));
  };
  if (path.empty() || path.size() > 2048) refuse("is empty or too long");
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
    return cat(what, ": incomplete response from ", url, ": ", result.failure,
               certificate ? "; where a proxy or mirror has a certificate of its own, name its file in SSL_CERT_FILE"
                           : "; check the network, the proxy (https_proxy) and HF_ENDPOINT, and run the same command "
                             "again: it continues where it stopped");
  }
  std::string said = result.header("x-error-message");
  if (!said.empty()) said = cat(" (\"", clipped(without_secret(said, options.token), 200), "\")");
  const std::string answered = cat(what, ": ", url, " answers ", result.status, said),
                    code = result.header("x-error-code");
  if (is_refused_elsewhere(result, origin_of(options.endpoint)))
    return cat(answered,
               ": the server of large files refuses the signed address that the hub gave for it; check this "
               "machine's clock, and that no proxy changes requests; the same command continues where it stopped");
  if (code == "RevisionNotFound")
    return cat(answered, ": it has no revision \"", clipped(repository.revision), "\": see --revision");
  if (result.status == 403 || code == "GatedRepo")
    return cat(answered, ": it is gated or private: ", ways_in(options, repository));
  if (result.status == 401)
    return cat(answered, ": there is no such ", kind_name(repository.kind), ", or it is private: check the name; ",
               ways_in(options, repository));
  if (code == "EntryNotFound") return cat(answered, ": the repository has no such file or folder");
  if (result.status == 404)
    return cat(answered, ": there is no such ", kind_name(repository.kind),
               ": check the name, including its capitals (",
               repository.kind == RepositoryKind::dataset ? "a model is fetched with --model"
                                                          : "a dataset is fetched without --model",
               ")");
  if (result.status == 429)
    return cat(answered,
               ": too many requests; wait, use fewer --connections, or set HF_TOKEN, which raises the limit; "
               "the same command continues where it stopped");
  if (is_transient(result))
    return cat(answered,
               ": the hub is temporarily unavailable; run the same command again later: it continues where it stopped");
  return cat(answered, ", which is not a response of the hub: check HF_ENDPOINT");
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
    require<DataError>(body.size() <= kMostAnswerBytes, result.url, ": the response is longer than ",
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
  RepositoryState state = parse_state(get(repository, url, nullptr), url);
  if (!state.name.empty() && state.name != repository.name && options_.note)
    options_.note(cat(kind_name(repository.kind), " ", repository.name, " is now called ", clipped(state.name)));
  return state;
}

std::vector<HubFile> Hub::files(const Repository& repository, const std::string& commit, const std::string& folder) {
  std::string url = cat(api_url(options_, repository), "/tree/", commit, folder.empty() ? "" : "/",
                        percent_encoded(folder, true), "?recursive=true");
  std::vector<HubFile> files;
  for (size_t pages = 0; !url.empty(); ++pages) {
    require<DataError>(pages < kMostPages, "the list of files of ", repository.name, " does not end");
    std::string next;
    const std::string where = url.substr(0, url.find('?'));
    std::ranges::move(parse_files(get(repository, url, &next), where), std::back_inserter(files));
    url = next.empty() ? "" : at_endpoint(options_, resolve_url(url, next));
  }
  std::ranges::sort(files, {}, &HubFile::path);
  const auto twice = std::ranges::adjacent_find(files, {}, &HubFile::path);
  require<DataError>(twice == files.end(), "the hub lists ", twice == files.end() ? "" : twice->path, " twice");
  return files;
}

}  // namespace witan::fetch
