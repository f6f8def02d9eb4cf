// Client of the hub's API (huggingface.co/docs/hub/api): a repository's state at a revision, and its files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "witan/fetch/digest.h"
#include "witan/fetch/http.h"

namespace witan::fetch {

// Subfolder of the destination with the manifest and incomplete files. Witan reads no text from it.
inline constexpr const char* kFetchFolder = ".witan-fetch";

enum class RepositoryKind : uint8_t { dataset, model };

struct Repository {
  RepositoryKind kind = RepositoryKind::dataset;
  std::string name;               // "HuggingFaceFW/fineweb-edu"
  std::string revision = "main";  // a branch, a tag or a commit
};

std::string kind_name(RepositoryKind kind);  // "dataset"

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;
  double connect_seconds = 15, stall_seconds = 30;
  RetryOptions retry;
  std::function<void(const std::string&)> note;  // called for each retried request; from any thread
};

// Takes the endpoint from HF_ENDPOINT, if set, and the token from HF_TOKEN. Throws UsageError for an endpoint that is
// not a URL, for a malformed token, and for a token that would be sent unencrypted.
HubOptions hub_options_of_environment();

HttpOptions http_options(const HubOptions& options);

struct Subset {
  std::string name;
  std::vector<std::string> patterns;  // of data_files
};

struct RepositoryState {
  std::string name;             // current name: the repository may have been renamed; empty: unknown
  std::string commit;           // of the revision
  std::vector<Subset> subsets;  // declared in the dataset's card
};

struct HubFile {
  std::string path;  // within the repository: relative, without "." and ".."
  uint64_t size = 0;
  Digest digest;
  bool operator==(const HubFile&) const = default;
};

// Throws DataError for refusals of the hub, naming the way out, and for malformed responses.
class Hub {
 public:
  explicit Hub(HubOptions options);

  RepositoryState state(const Repository& repository);
  // All files below one of its folders ("" for all), sorted by path. The paths are safe to use below a local folder.
  std::vector<HubFile> files(const Repository& repository, const std::string& commit, const std::string& folder);

 private:
  // Returns the whole body; sets `next` to the URL of the next page.
  std::string get(const Repository& repository, const std::string& url, std::string* next);

  HubOptions options_;
  HttpClient client_;
};

std::string file_url(const HubOptions& options, const Repository& repository, const std::string& commit,
                     const std::string& path);

// Throws UsageError for a name that a repository cannot have.
void check_repository(const Repository& repository);
// Throws DataError for a path that would leave the destination folder or cannot be a file name.
void check_file_name(const std::string& path);

// Describes a failed request: what was requested, the response, the likely cause and the way out.
std::string describe_failure(const HubOptions& options, const Repository& repository, const HttpResult& result);

// Parsers of the hub's responses (hub_answers.cpp). Each throws DataError naming `where` for a malformed response.

// The description of a repository at a revision.
RepositoryState parse_state(std::string_view text, const std::string& where);
// A page of the list of files, without folders. The paths are safe to use below a local folder.
std::vector<HubFile> parse_files(std::string_view text, const std::string& where);
// The address of the next page, from a Link header (RFC 8288) such as <https://...>; rel="next"; "" without one.
std::string next_page(const HttpResult& result);

}  // namespace witan::fetch
