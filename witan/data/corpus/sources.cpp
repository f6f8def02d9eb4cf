#include "witan/data/corpus/sources.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/glob.h"
#include "witan/base/text.h"
#include "witan/data/arrow/arrow_reader.h"
#include "witan/data/mds/mds_reader.h"
#include "witan/data/parquet/parquet_file.h"
#include "witan/data/tables/damage.h"
#include "witan/data/tar/tar_reader.h"
#include "witan/data/tar/webdataset.h"
#include "witan/data/text/decompress.h"
#include "witan/data/text/encoding.h"

namespace witan {
namespace {

constexpr size_t kLeastPodFiles = 150;

SourceKind kind_of_name(fs::path path) {
  path = ascii_lower_case(path.filename().string());
  if (path.extension() == ".parquet") return SourceKind::parquet;
  if (path.extension() == ".arrow" || path.extension() == ".feather") return SourceKind::arrow;
  if (path.extension() == ".tgz") return SourceKind::webdataset;
  for (const char* compressed : {".gz", ".zst", ".zstd"})
    if (path.extension() == compressed) path.replace_extension();
  const fs::path extension = path.extension();
  if (extension == ".tar") return SourceKind::webdataset;
  if (extension == ".mds") return SourceKind::mds;
  const bool rows = extension == ".jsonl" || extension == ".json" || extension == ".ndjson";
  return rows ? SourceKind::jsonl : SourceKind::text;
}

std::string head_of(const fs::path& path) {
  std::string head(8 << 10, '\0');
  head.resize(open_bytes(path)->read(head.data(), head.size()));
  return head;
}

// Why a file that begins so is no text, and what to do about it; empty: it may be text.
std::string why_no_text(const fs::path& path, std::string_view head) {
  constexpr const char* kCompressed = "-compressed, which is not read: unpack it, or recompress it with zstd or gzip";
  constexpr const char* kArchive = ", which is not read: unpack it, and give the folder of its files";
  const auto begins = [&](std::string_view magic) { return head.starts_with(magic); };
  if (begins(std::string_view("\xFD\x37zXZ\0", 6))) return cat("xz", kCompressed);
  if (begins("BZh") && head.size() > 9 && head.substr(4, 6) == "1AY&SY") return cat("bzip2", kCompressed);
  if (begins("\x04\x22\x4D\x18")) return cat("lz4", kCompressed);
  if (begins("PK\x03\x04")) return cat("a zip archive", kArchive);
  if (begins("7z\xBC\xAF\x27\x1C")) return cat("a 7z archive", kArchive);
  if (begins("Rar!\x1A\x07")) return cat("a rar archive", kArchive);
  if (begins("%PDF-")) return "a PDF, which is not read: extract its text, as with pdftotext";
  if (std::string wide = explain_wide_text(path, head); !wide.empty()) return wide;
  return head.find('\0') == std::string::npos ? "" : "a binary file (it has NUL bytes), not text";
}

// Suggests what a path that does not exist may have been meant for.
std::string why_missing(const fs::path& path) {
  const std::string name = path.string();
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error)))
    return cat(name, " is a link to ", fs::read_symlink(path, error).string(), ", which does not exist");
  const std::string missing = cat("there is no file or folder ", name);
  if (name.starts_with('~'))
    return cat(missing, ": the shell expands ~ only where it is not quoted; give the whole path");
  if (name.find("://") != std::string::npos)
    return cat(missing,
               ": what a URL names is not read; `witan data fetch OWNER/NAME` gets datasets of the Hugging "
               "Face hub; get others with curl or their store's own program first");
  const auto is_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  const size_t slash = name.find('/');
  const bool hub = slash != std::string::npos && slash > 0 && slash + 1 < name.size() && !path.has_extension() &&
                   name[0] != '.' && std::ranges::all_of(name.substr(0, slash), is_name) &&
                   std::ranges::all_of(name.substr(slash + 1), is_name);
  return hub ? cat(missing, "; if it is a dataset of the Hugging Face hub, get it with `witan data fetch ", name, "`")
             : missing;
}

// The paths that match a shell pattern, sorted.
std::vector<fs::path> paths_like(const std::string& pattern) {
  ::glob_t found{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> paths;
  if (code == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

// Why no line of a file of rows that begins so can be used, and what to do about it; empty: some may.
std::string why_no_rows(const fs::path& path, std::string_view head) {
  if (std::string wide = explain_wide_text(path, head); !wide.empty()) return wide;
  constexpr std::string_view kBlank = " \t\r\n";
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const size_t open = head.find_first_not_of(kBlank);
  if (open == head.npos || head[open] != '[') return "";
  const size_t item = head.find_first_not_of(kBlank, open + 1);
  if (item == head.npos || head[item] != '{') return "";
  return cat("one JSON array, but rows are objects, one on each line: convert it (`",
             rewrite_command(path, "jq -c '.[]'", ".rows", ".jsonl"), "`)");
}

// The kind, and why it is no text after all.
struct Look {
  SourceKind kind = SourceKind::text;
  std::string binary = {};
};

// Files of text and of rows are looked into, tables are known by their names.
Look look_at(const fs::path& path) {
  const SourceKind kind = kind_of_name(path);
  if (is_table(kind)) return {kind};
  const std::string head = head_of(path);
  if (kind == SourceKind::jsonl) return {kind, why_no_rows(path, head)};
  if (head.starts_with("PAR1")) return {SourceKind::parquet};
  if (head.starts_with("ARROW1")) return {SourceKind::arrow};
  return {kind, why_no_text(path, head)};
}

// Whether an archive may be one of samples: archives of anything else lie in folders, too. What is damaged may be.
bool has_samples(const fs::path& path) try {
  constexpr int kLooked = 64;  // files
  const auto bytes = open_bytes(path);
  tar::TarReader archive(*bytes);
  tar::Member member;
  for (int i = 0; i < kLooked && archive.next(member); ++i)
    if (const std::string name = ascii_lower_case(member.name); name.ends_with(".txt") || name.ends_with(".json"))
      return true;
  return false;
} catch (const tables::Damaged&) {
  return true;
} catch (const CorruptionError&) {  // of the compression
  return true;
}

Source describe(const fs::path& path, SourceKind kind) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw DataError(cat("cannot read ", path.string(), ": ", std::strerror(errno)));
  return {fs::canonical(path), kind, static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool has_files_of(const fs::path& folder, SourceKind kind) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (kind_of_name(entry.path()) == kind) return true;
  return false;
}

// Whether a file is one that other programs write next to their tables: descriptions, and copies of the same rows.
bool is_bookkeeping(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "_metadata" || name == "_common_metadata" || name == "dataset_dict.json" || name == "dataset_infos.json")
    return true;
  if (name == "dataset_info.json" || name == "state.json") return has_files_of(path.parent_path(), SourceKind::arrow);
  if (name == "index.json") return has_files_of(path.parent_path(), SourceKind::mds);
  return name.starts_with("cache-") && path.extension() == ".arrow";
}

// Whether a file of a dataset's repository describes the dataset rather than holding rows.
bool is_paper(const fs::path& path) {
  const std::string name = ascii_lower_case(path.filename().string());
  return std::ranges::any_of(std::array{"readme", "license", "licence", "notice", "citation"},
                             [&](const std::string& paper) {
                               return name == paper || name.starts_with(paper + ".") || name.starts_with(paper + "_") ||
                                      name.starts_with(paper + "-");
                             });
}

// Patterns, and whether any file has matched each of them.
class Patterns {
 public:
  explicit Patterns(const std::vector<std::string>& patterns) : patterns_(patterns), matched_(patterns.size()) {}

  // Every pattern is tried: each must match something.
  bool match(const std::string& path) {
    bool any = false;
    for (size_t i = 0; i < patterns_.size(); ++i)
      if (matches_any({patterns_[i]}, path)) matched_[i] = any = true;
    return any;
  }
  bool empty() const { return patterns_.empty(); }
  // The first one that has matched nothing; null: there is none.
  const std::string* unmatched() const {
    const auto found = std::ranges::find(matched_, false);
    return found == matched_.end() ? nullptr : &patterns_[static_cast<size_t>(found - matched_.begin())];
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> matched_;
};

class Finder {
 public:
  explicit Finder(const SourceSelection& selection) : include_(selection.include), exclude_(selection.exclude) {}

  void add(const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return add_pattern(path);
    if (fs::is_directory(status)) return add_folder(path);
    require<DataError>(fs::is_regular_file(status), "cannot read ", path.string(),
                       ": it is neither a file nor a folder");
    const Look look = look_at(path);
    require<DataError>(look.binary.empty(), path.string(), ": this is ", look.binary);
    const Source source = describe(path, look.kind);
    if (source.bytes == 0) without_text_.push_back({path, SkippedFile::Why::empty});
    keep(source);
  }

  // Throws DataError where patterns have left out every file of folders, and no other is named.
  void require_some(const std::string& named) const {
    const bool all_left_out = left_out_ > 0 && left_out_ == seen_in_folders_ && found_.files.empty();
    require<DataError>(!all_left_out, "--include and --exclude leave out ", counted(left_out_, "file"), " of ", named,
                       ", which is all of them, such as ", examples_);
  }

  // Throws DataError for a pattern that has matched nothing; `named`: where was looked.
  void require_matches(const std::string& named) const {
    for (const auto& [option, patterns] : {std::pair("--include", &include_), std::pair("--exclude", &exclude_)}) {
      const std::string* pattern = patterns->unmatched();
      if (pattern == nullptr) continue;
      const std::string folder = *pattern + '/';
      require<DataError>(!folders_.contains(folder), option, " ", clipped(*pattern), " matches no file in ", named,
                         ": did you mean ", clipped(folder), ", which stands for all files of that folder?");
      const std::string seen = examples_.empty()
                                   ? cat("no folder with files is among them, and a file that is named itself is read ",
                                         "whatever the patterns say")
                                   : cat("patterns are matched against paths below the folder, such as ", examples_);
      throw DataError(cat(option, " ", clipped(*pattern), " matches no file in ", named, ": ", seen));
    }
  }

  Sources finish() {
    const bool text = std::ranges::any_of(found_.files, [](const Source& one) { return one.bytes > 0; });
    if (text) std::ranges::move(without_text_, std::back_inserter(found_.skipped));
    std::sort(found_.files.begin(), found_.files.end(),
              [](const Source& a, const Source& b) { return a.path < b.path; });
    std::sort(found_.skipped.begin(), found_.skipped.end(),
              [](const SkippedFile& a, const SkippedFile& b) { return a.path < b.path; });
    return std::move(found_);
  }

 private:
  // A pattern that no shell has expanded: one in quotes or in a file.
  void add_pattern(const fs::path& path) {
    const std::string pattern = path.string();
    if (pattern.find_first_of("*?[") == std::string::npos) throw DataError(why_missing(path));
    const std::vector<fs::path> paths = paths_like(pattern);
    require<DataError>(!paths.empty(), "no file or folder matches ", pattern);
    for (const fs::path& one : paths) {
      std::error_code error;
      if (!fs::exists(one, error))
        throw DataError(why_missing(one));  // a broken link, whose name may be a pattern itself
      add(one);
    }
  }

  void add_folder(const fs::path& folder) {
    std::error_code error;
    fs::recursive_directory_iterator walk(folder, error);
    for (const fs::recursive_directory_iterator end; !error && walk != end; walk.increment(error)) {
      if (walk->path().filename().string().starts_with('.')) {
        walk.disable_recursion_pending();
        continue;
      }
      const std::string below = walk->path().lexically_relative(folder).string();
      std::error_code none;  // of a link into nothing, which does not end the walk
      const bool is_folder = walk->is_directory(none);
      if (is_folder && chooses()) folders_.insert(below + '/');
      if (is_folder || is_wanted(*walk, below)) add_found(*walk);
    }
    require<DataError>(!error, "cannot read the folder ", folder.string(), ": ", error.message());
    if (std::ranges::none_of(in_folder_, [](const auto& found) { return found.second.bytes > 0; }))
      without_text_.push_back({folder, SkippedFile::Why::folder_without_text});
    add_all(std::exchange(in_folder_, {}));
  }

  bool chooses() const { return !include_.empty() || !exclude_.empty(); }

  // Whether to take a file, by its path below the folder that was named.
  bool is_wanted(const fs::directory_entry& entry, const std::string& path) {
    constexpr int64_t kExamples = 3;
    const bool included = include_.match(path), excluded = exclude_.match(path);
    const bool wanted = (include_.empty() || included) && !excluded;
    std::error_code none;
    if (!entry.is_regular_file(none)) return wanted;  // a link into nothing is no file of which to speak
    if (++seen_in_folders_ <= kExamples) examples_ += cat(examples_.empty() ? "" : ", ", clipped(path));
    if (!wanted) ++left_out_;
    return wanted;
  }

  // Adds the files of a folder. If some hold rows, files that describe the dataset are not text to learn from.
  void add_all(const std::vector<std::pair<fs::path, Source>>& found) {
    const bool rows = std::ranges::any_of(found, [](const auto& one) { return one.second.kind != SourceKind::text; });
    for (const auto& [path, source] : found)
      if (rows && source.kind == SourceKind::text && is_paper(path))
        found_.skipped.push_back({path, SkippedFile::Why::bookkeeping});
      else
        keep(source);
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
    if (is_bookkeeping(entry.path())) return skip(Why::bookkeeping);
    const Look look = look_at(entry.path());
    require<DataError>(look.binary.empty() || look.kind != SourceKind::jsonl, entry.path().string(), ": this is ",
                       look.binary, ", or move it out of the folder");
    if (!look.binary.empty() || (look.kind == SourceKind::webdataset && !has_samples(entry.path())))
      return skip(Why::binary);
    in_folder_.emplace_back(entry.path(), describe(entry.path(), look.kind));
  }

  void keep(const Source& source) {
    if (seen_.insert(source.path).second) found_.files.push_back(source);
  }

  Patterns include_, exclude_;
  std::string examples_;                        // of paths below folders
  std::set<std::string> folders_;               // below those that were named, "drafts/"
  int64_t seen_in_folders_ = 0, left_out_ = 0;  // files
  Sources found_;
  std::set<fs::path> seen_;
  std::vector<std::pair<fs::path, Source>> in_folder_;  // of the one that is walked
  std::vector<SkippedFile> without_text_;               // of those that were named
};

}  // namespace

const char* name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::jsonl:
      return "jsonl";
    case SourceKind::parquet:
      return "parquet";
    case SourceKind::arrow:
      return "arrow";
    case SourceKind::webdataset:
      return "webdataset";
    case SourceKind::mds:
      return "mds";
    case SourceKind::text:
      break;
  }
  return "text";
}

bool is_table(SourceKind kind) {
  return kind != SourceKind::text && kind != SourceKind::jsonl;
}

Sources find_sources(const std::vector<fs::path>& paths, const SourceSelection& selection) {
  Finder finder(selection);
  std::string named;
  for (const fs::path& path : paths) {
    finder.add(path);
    named += cat(named.empty() ? "" : ", ", path.string());
  }
  finder.require_matches(named);
  finder.require_some(named);
  Sources sources = finder.finish();
  require_readable(sources.skipped);
  require<DataError>(!sources.files.empty(), "no text found in ", named.empty() ? "no paths" : named,
                     ": give text files (.txt, .md, .pod, ...) or rows (.jsonl), plain, .gz or .zst, or tables "
                     "(.parquet, .arrow, .tar, .mds)");
  return sources;
}

void require_readable(const std::vector<SkippedFile>& skipped) {
  std::vector<SkippedFile> unreadable;
  for (const SkippedFile& file : skipped)
    if (file.why == SkippedFile::Why::unreadable) unreadable.push_back(file);
  require<DataError>(
      unreadable.empty(), "no permission to read what is in a folder of text: ", describe_skipped(unreadable),
      "; let this user read it (chmod, chown), or leave it out: move it elsewhere, or give it a name that "
      "begins with a dot");
}

std::string describe_skipped(const std::vector<SkippedFile>& skipped) {
  using Why = SkippedFile::Why;
  constexpr size_t kNamed = 3;
  struct Kind {
    Why why;
    const char* noun;
    const char* more = "";
  };
  constexpr Kind kKinds[] = {{Why::binary, "binary file"},      {Why::broken_link, "broken link"},
                             {Why::folder_link, "folder link"}, {Why::unreadable, "unreadable file"},
                             {Why::special, "special file"},    {Why::bookkeeping, "bookkeeping file"},
                             {Why::empty, "empty file"},        {Why::folder_without_text, "folder", " without text"}};
  std::string text;
  for (const auto& [why, noun, more] : kKinds) {
    std::vector<std::string> names;
    for (const SkippedFile& file : skipped)
      if (file.why == why) names.push_back(file.path.string());
    if (names.empty()) continue;
    text += cat(text.empty() ? "" : ", ", counted(static_cast<int64_t>(names.size()), noun), more, " (");
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

std::unique_ptr<TableReader> open_table(const fs::path& path, SourceKind kind, const TableColumns& columns) {
  switch (kind) {
    case SourceKind::parquet:
      return open_parquet(path, columns);
    case SourceKind::arrow:
      return open_arrow(path, columns);
    case SourceKind::webdataset:
      return open_webdataset(path, columns);
    case SourceKind::mds:
      return open_mds(path, columns);
    case SourceKind::text:
    case SourceKind::jsonl:
      break;
  }
  throw DataError(cat(path.string(), ": ", name_of(kind), " is no table"));
}

}  // namespace witan
