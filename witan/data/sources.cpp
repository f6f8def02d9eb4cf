#include "witan/data/sources.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

#include "witan/base/error.h"
#include "witan/data/decompress.h"

namespace witan {
namespace {

constexpr size_t kLeastPodFiles = 150;

SourceKind kind_of(fs::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") path.replace_extension();
  const fs::path extension = path.extension();
  const bool rows = extension == ".jsonl" || extension == ".json" || extension == ".ndjson";
  return rows ? SourceKind::jsonl : SourceKind::text;
}

bool looks_binary(const fs::path& path) {
  std::array<char, 8 << 10> head;
  const size_t n = open_bytes(path)->read(head.data(), head.size());
  return std::string_view(head.data(), n).find('\0') != std::string_view::npos;
}

Source describe(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw DataError(cat("cannot read ", path.string(), ": ", std::strerror(errno)));
  return {path, kind_of(path), static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

class Finder {
 public:
  void add(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    require<DataError>(fs::exists(status), "there is no file or folder ", path.string());
    if (fs::is_directory(status)) return add_folder(path);
    require<DataError>(fs::is_regular_file(status), "cannot read ", path.string(),
                       ": it is neither a file nor a folder");
    const Source source = describe(fs::canonical(path));
    require<DataError>(source.kind == SourceKind::jsonl || !looks_binary(path), path.string(),
                       ": this is a binary file (it has NUL bytes), not text; if it is UTF-16, convert it with iconv");
    keep(source);
  }

  Sources finish() {
    std::sort(found_.files.begin(), found_.files.end(),
              [](const Source& a, const Source& b) { return a.path < b.path; });
    std::sort(found_.skipped.begin(), found_.skipped.end());
    return std::move(found_);
  }

 private:
  void add_folder(const fs::path& folder) {
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, error);
    for (const fs::recursive_directory_iterator end; !error && walk != end; walk.increment(error)) {
      if (walk->path().filename().string().starts_with('.')) {
        walk.disable_recursion_pending();
        continue;
      }
      std::error_code gone;
      if (!walk->is_regular_file(gone)) continue;
      const Source source = describe(fs::canonical(walk->path()));
      if (source.kind == SourceKind::text && looks_binary(source.path))
        found_.skipped.push_back(source.path);
      else
        keep(source);
    }
    require<DataError>(!error, "cannot read the folder ", folder.string(), ": ", error.message());
  }

  void keep(const Source& source) {
    if (seen_.insert(source.path).second) found_.files.push_back(source);
  }

  Sources found_;
  std::set<fs::path> seen_;
};

}  // namespace

Sources find_sources(const std::vector<fs::path>& paths) {
  Finder finder;
  std::string named;
  for (const fs::path& path : paths) {
    finder.add(path);
    named += cat(named.empty() ? "" : ", ", path.string());
  }
  Sources sources = finder.finish();
  require<DataError>(!sources.files.empty(), "no text found in ", named.empty() ? "no paths" : named,
                     ": give text files (.txt, .md, .pod, ...) or rows (.jsonl), plain, .gz or .zst");
  return sources;
}

std::vector<fs::path> default_corpus(const fs::path& root) {
  std::set<fs::path> pods;  // versions may be links to one another
  std::error_code error;
  for (const auto& version : fs::directory_iterator(root, error))
    for (const auto& file : fs::directory_iterator(version.path() / "pod", error)) {
      std::error_code gone;
      if (file.path().extension() == ".pod" && file.is_regular_file(gone)) pods.insert(fs::canonical(file.path()));
    }
  require<DataError>(
      pods.size() >= kLeastPodFiles, "the default corpus is not on this machine: ", pods.size(), " .pod files below ",
      root.string(), "/*/pod, wanted ", kLeastPodFiles,
      " or more; pass --data FILE_OR_FOLDER, or install the Debian package perl-doc (apt-get install perl-doc)");
  return {pods.begin(), pods.end()};
}

}  // namespace witan
