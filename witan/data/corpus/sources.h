// The files that make up a corpus.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/data/tables/table_reader.h"

namespace witan {

enum class SourceKind { text, jsonl, parquet, arrow, webdataset, mds };

const char* name_of(SourceKind kind);  // "jsonl"
// Whether it is read by rows through open_table().
bool is_table(SourceKind kind);

struct Source {
  fs::path path;  // absolute
  SourceKind kind = SourceKind::text;
  uint64_t bytes = 0;       // on disk
  int64_t modified_ns = 0;  // Unix time of the last change

  bool operator==(const Source&) const = default;
};

// Found in a folder, but skipped; or named itself, and without text beside others that have some: a file of 0 bytes, a
// folder in which no file has text.
struct SkippedFile {
  enum class Why : uint8_t {
    binary,
    broken_link,
    folder_link,
    unreadable,
    special,
    bookkeeping,
    empty,
    folder_without_text
  };
  fs::path path;
  Why why = Why::binary;

  bool operator==(const SkippedFile&) const = default;
};

struct Sources {
  std::vector<Source> files;         // sorted by path, each file once; those of 0 bytes, too
  std::vector<SkippedFile> skipped;  // sorted by path
};

// Selects the files of a folder that are read. Patterns are matched against a file's path below the folder, as by
// `witan data fetch` (base/files/glob.h: * also matches /, and "drafts/" stands for all in that folder). A file that is
// named itself is read whatever they say.
struct SourceSelection {
  std::vector<std::string> include;  // none: every file
  std::vector<std::string> exclude;  // leaves out what is included otherwise

  bool operator==(const SourceSelection&) const = default;
};

// Expands files, folders and, where there is no file of that name, patterns of the shell (*, ?, []). Names in .jsonl,
// .json or .ndjson are rows, each optionally followed by .gz or .zst; those in .parquet, .arrow or .feather, and files
// that begin as such, are tables, and so are WebDataset's archives in .tar, .tar.gz, .tgz or .tar.zst, and shards in
// .mds; all others are plain text, optionally compressed. The name is that of the link if the file is one, as in the
// caches of the Hugging Face hub. Folders are walked recursively, without hidden files. All other skipped files are
// listed in `skipped`: binary files (a NUL byte near the start, or the first bytes of an archive that is not read),
// symbolic links to folders, broken links, pipes and devices, archives that begin with neither .txt nor .json files,
// and what `datasets` and writers of Parquet keep beside their tables (dataset_info.json, cache-*.arrow, _metadata) or
// shards (index.json), and in folders with rows or tables their README, LICENSE and the like, which a hub fetches with
// them. What the selection leaves out is not looked at. Throws DataError for a missing or binary path that was named
// itself, for a file that may not be read, for a pattern of the selection that no file of any folder matches, and if
// nothing was found.
Sources find_sources(const std::vector<fs::path>& paths, const SourceSelection& selection = {});

// Throws DataError if files of a folder may not be read: they are text that was meant to be there.
void require_readable(const std::vector<SkippedFile>& skipped);

// "2 binary files (a.png, b.png), 1 broken link (c.txt)": how many of each kind, and the first few; "" for none.
std::string describe_skipped(const std::vector<SkippedFile>& skipped);

// The paths of a list in flags and configurations: arguments, each with one path or several separated by commas. An
// argument that is the name of a file, commas included, is that file.
std::vector<fs::path> paths_of(const std::vector<std::string>& words);

// English text that Debian ships: the .pod files of the package perl-doc, below `root`/*/pod. Throws DataError, naming
// the fixes, if there are fewer than 150 (perl-doc has 206; perl itself has a handful).
std::vector<fs::path> default_corpus(const fs::path& root = "/usr/share/perl");

// Opens a table. `kind` is one of is_table(). Throws what the readers of these kinds throw.
std::unique_ptr<TableReader> open_table(const fs::path& path, SourceKind kind, const TableColumns& columns);

}  // namespace witan
