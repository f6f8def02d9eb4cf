#include "witan/data/sources.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "witan/base/counted.h"
#include "witan/base/error.h"
#include "witan/base/text.h"
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
    std::sort(found_.skipped.begin(), found_.skipped.end(),
              [](const SkippedFile& a, const SkippedFile& b) { return a.path < b.path; });
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
      add_found(*walk);
    }
    require<DataError>(!error, "cannot read the folder ", folder.string(), ": ", error.message());
  }

  // An entry of a folder.
  void add_found(const fs::directory_entry& entry) {
    using Why = SkippedFile::Why;
    const auto skip = [&](Why why) { found_.skipped.push_back({entry.path(), why}); };
    std::error_code error;
    const fs::file_status status = entry.status(error);
    const bool link = entry.is_symlink(error);
    if (fs::is_directory(status)) {
      if (link) skip(Why::folder_link);
      return;
    }
    if (!fs::is_regular_file(status)) return skip(link && !fs::exists(status) ? Why::broken_link : Why::special);
    if (::access(entry.path().c_str(), R_OK) != 0) return skip(Why::unreadable);
    const Source source = describe(fs::canonical(entry.path()));
    if (source.kind == SourceKind::text && looks_binary(source.path)) return skip(Why::binary);
    keep(source);
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

std::string describe_skipped(const std::vector<SkippedFile>& skipped) {
  using Why = SkippedFile::Why;
  constexpr size_t kNamed = 3;
  constexpr std::pair<Why, const char*> kKinds[] = {{Why::binary, "binary file"},
                                                    {Why::broken_link, "broken link"},
                                                    {Why::folder_link, "folder link"},
                                                    {Why::unreadable, "unreadable file"},
                                                    {Why::special, "special file"}};
  std::string text;
  for (const auto& [why, noun] : kKinds) {
    std::vector<std::string> names;
    for (const SkippedFile& file : skipped)
      if (file.why == why) names.push_back(file.path.string());
    if (names.empty()) continue;
    text += cat(text.empty() ? "" : ", ", counted(static_cast<int64_t>(names.size()), noun), " (");
    for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += cat(i == 0 ? "" : ", ", clipped(names[i]));
    text += names.size() > kNamed ? " ...)" : ")";
  }
  return text;
}

std::vector<fs::path> paths_of(const std::vector<std::string>& words) {
  std::vector<fs::path> paths;
  for (const std::string& word : words) {
    std::error_code none;
    if (fs::exists(word, none)) {
      paths.emplace_back(word);
      continue;
    }
    for (size_t begin = 0; begin <= word.size();) {
      const size_t end = std::min(word.find(',', begin), word.size());
      if (end > begin) paths.emplace_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return paths;
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
