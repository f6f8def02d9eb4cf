#include "witan/fetch/manifest.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"

namespace witan::fetch {
namespace {

constexpr const char* kManifest = "manifest.jsonl";

const char* digest_key(DigestKind kind) {
  return kind == DigestKind::sha256 ? "sha256" : "git_blob";
}

FetchedFile fetched_of(const Json& line) {
  const DigestKind kind = line.contains("sha256") ? DigestKind::sha256 : DigestKind::git_blob;
  return {{line.at("path").get<std::string>(),
           static_cast<uint64_t>(json_integer(line.at("size"))),
           {kind, line.at(digest_key(kind)).get<std::string>()}},
          line.at("commit").get<std::string>(),
          json_integer(line.at("modified"), INT64_MIN, INT64_MAX)};
}

}  // namespace

Manifest::Manifest(const fs::path& folder, const Repository& repository) : file_(folder / kFetchFolder / kManifest) {
  const MutexLock lock(mutex_);
  read(repository, folder);
  if (file_.size() == 0)
    file_.append(Json({{"format", 1}, {"kind", kind_name(repository.kind)}, {"repository", repository.name}}).dump() +
                 "\n");
}

void Manifest::read(const Repository& repository, const fs::path& folder) {
  const std::string text = read_file(file_.path());
  size_t begin = 0;
  for (size_t number = 1, end; (end = text.find('\n', begin)) != std::string::npos; ++number, begin = end + 1) {
    const std::string where = cat(file_.path().string(), ":", number);
    try {
      const Json line = parse_json(std::string_view(text).substr(begin, end - begin), where);
      if (number > 1) {
        const FetchedFile fetched = fetched_of(line);
        fetched_[fetched.file.path] = fetched;
        continue;
      }
      const std::string kind = line.at("kind"), name = line.at("repository");
      require<UsageError>(kind == kind_name(repository.kind) && name == repository.name, folder.string(),
                          " holds files of the ", kind, " ", name, ": fetch the ", kind_name(repository.kind), " ",
                          repository.name, " to another folder (--to)");
    } catch (const Json::exception&) {
      throw CorruptionError(cat(where,
                                ": not a line of a manifest: remove the file, and run the same command again, which "
                                "verifies the fetched files by hash"));
    }
  }
  file_.cut(begin);  // removes a line that a full disk or a power failure cut off
}

std::optional<FetchedFile> Manifest::find(const std::string& path) const {
  const MutexLock lock(mutex_);
  const auto found = fetched_.find(path);
  if (found == fetched_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> Manifest::paths() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, fetched] : fetched_) paths.push_back(path);
  return paths;
}

void Manifest::add(const FetchedFile& fetched) {
  const Json line = {{"path", fetched.file.path},
                     {"size", fetched.file.size},
                     {digest_key(fetched.file.digest.kind), fetched.file.digest.hex},
                     {"commit", fetched.commit},
                     {"modified", fetched.modified}};
  const MutexLock lock(mutex_);
  file_.append(line.dump() + "\n");
  fetched_[fetched.file.path] = fetched;
}

int64_t modified_time(const fs::path& path) {
  struct stat status {};
  require<IoError>(::stat(path.c_str(), &status) == 0, "cannot read ", path.string(), ": ", std::strerror(errno));
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace witan::fetch
