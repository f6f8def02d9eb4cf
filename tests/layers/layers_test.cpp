// Checks the structure of the sources: which folder includes which (docs/architecture.md, section 3), a comment at the
// head of every header, short files and small folders; and that the pages name only paths and tests that exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace witan {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;
using Arrows = std::map<std::string, Names>;  // which folders each may include directly

const fs::path kRoot = WITAN_SOURCE_DIR;
constexpr int kMostLines = 700;
constexpr int kMostFiles = 40;  // in a folder that has subfolders ("rooms"), and in each of them

// folder -> folders it may include directly, and transitively those that they may include. cli may include everything.
const Arrows kArrows = {
    {"base", {}},
    {"formats", {"base"}},
    {"tokenizer", {"formats"}},
    {"tensor", {"base"}},
    {"report", {"base"}},
    {"fetch", {"base"}},
    {"data", {"tokenizer"}},
    {"kernels", {"tensor"}},
    {"autograd", {"kernels"}},
    {"comm", {"kernels"}},
    {"ops", {"comm", "autograd"}},
    {"nn", {"ops"}},
    {"moe", {"nn"}},
    {"model", {"moe"}},
    {"optim", {"nn"}},
    {"parallel", {"model", "optim"}},
    {"checkpoint", {"comm"}},
    {"generate", {"parallel", "tokenizer"}},
    {"serve", {"generate"}},
    {"tasks", {"data", "generate"}},
    {"convert", {"formats", "parallel", "checkpoint"}},
    {"train", {"data", "parallel", "checkpoint", "generate", "report", "convert"}},
    {"planner", {"train"}},
    {"cli", {"base",    "tokenizer", "data",    "tensor", "kernels",  "comm",       "autograd", "ops",
             "nn",      "moe",       "model",   "optim",  "parallel", "checkpoint", "generate", "serve",
             "convert", "train",     "planner", "report", "fetch",    "tasks",      "formats"}},
};

Names reachable(const Arrows& arrows, const std::string& from) {
  Names all = {from};
  std::vector<std::string> waiting = {from};
  while (!waiting.empty()) {
    const auto found = arrows.find(waiting.back());
    waiting.pop_back();
    if (found == arrows.end()) continue;
    for (const auto& to : found->second)
      if (all.insert(to).second) waiting.push_back(to);
  }
  return all;
}

std::string joined(const Names& names) {
  std::string out;
  for (const auto& name : names) out += out.empty() ? name : ", " + name;
  return out;
}

struct Source {
  std::string name;    // "witan/kernels/gemm/cpu/gemm.cpp"
  std::string folder;  // "kernels"
  std::vector<std::string> lines;
};

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The files below `top` whose extension or name is in `kinds`, sorted.
std::vector<Source> sources(const std::string& top, const Names& kinds) {
  std::vector<Source> found;
  if (!fs::exists(kRoot / top)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
    const fs::path& path = entry.path();
    if (!entry.is_regular_file() || !(kinds.count(path.extension()) || kinds.count(path.filename()))) continue;
    Source source{path.lexically_relative(kRoot).generic_string(), {}, {}};
    const fs::path inside = path.lexically_relative(kRoot / top);
    if (inside.has_parent_path()) source.folder = *inside.begin();
    source.lines = lines_of(path);
    found.push_back(std::move(source));
  }
  std::sort(found.begin(), found.end(), [](const Source& a, const Source& b) { return a.name < b.name; });
  return found;
}

const Names kCode = {".h", ".cpp", ".cu", ".cuh"};

// Empty if `from` may use `to`, otherwise an explanation.
std::string objection(const std::string& from, const std::string& to, const Arrows& arrows = kArrows) {
  if (!arrows.count(to)) return "witan/" + to + "/ is no folder of the table";
  const Names allowed = reachable(arrows, from);
  if (allowed.count(to)) return {};
  return "the arrow " + from + " -> " + to + " does not exist; " + from + " may include " + joined(allowed);
}

void expect_no_cycles(const Arrows& arrows) {
  for (const auto& [from, direct] : arrows)
    for (const auto& to : direct) {
      ASSERT_TRUE(arrows.count(to)) << from << " -> " << to << ": a name without a row of its own";
      EXPECT_FALSE(reachable(arrows, to).count(from)) << from << " -> " << to << " -> " << from;
    }
}

Names folders_in(const fs::path& top) {
  Names found;
  for (const auto& entry : fs::directory_iterator(top))
    if (entry.is_directory()) found.insert(entry.path().filename());
  return found;
}

Names keys(const Arrows& arrows) {
  Names names;
  for (const auto& [name, direct] : arrows) names.insert(name);
  return names;
}

TEST(Layers, TheTableNamesEveryFolder) {
  EXPECT_EQ(folders_in(kRoot / "witan"), keys(kArrows));
}

TEST(Layers, ErrorsNameTheInclude) {
  EXPECT_EQ(objection("moe", "tensor"), "");
  EXPECT_EQ(objection("report", "report"), "");
  EXPECT_EQ(objection("data", "tensor"),
            "the arrow data -> tensor does not exist; data may include base, data, formats, tokenizer");
  EXPECT_EQ(objection("data", "attic"), "witan/attic/ is no folder of the table");
}

TEST(Layers, IncludesFollowTheTable) {
  const std::regex include(R"re(^\s*#\s*include\s*["<]witan/([^/">]+)/.*)re");
  int seen = 0;
  for (const Source& source : sources("witan", kCode)) {
    ASSERT_TRUE(kArrows.count(source.folder)) << source.name << " lies in no folder of the table";
    std::smatch match;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!std::regex_match(source.lines[i], match, include)) continue;
      ++seen;
      const std::string why = objection(source.folder, match[1]);
      EXPECT_TRUE(why.empty()) << source.name << ":" << i + 1 << ": " << source.lines[i] << ": " << why;
    }
  }
  EXPECT_GT(seen, 0) << "no include was found: is " << kRoot << " the source tree?";
}

// A path relative to the file would bypass the table.
TEST(Layers, QuotedIncludesStartAtTheRoot) {
  const std::regex quoted(R"re(^\s*#\s*include\s*"(.*)".*)re");
  for (const Source& source : sources("witan", kCode)) {
    std::smatch match;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!std::regex_match(source.lines[i], match, quoted)) continue;
      EXPECT_EQ(match[1].str().rfind("witan/", 0), 0u)
          << source.name << ":" << i + 1 << ": write \"witan/FOLDER/FILE.h\"";
    }
  }
}

TEST(Layers, LibrariesLinkAsTheTableAllows) {
  const std::regex library(R"(^witan_library\((\w+)([^)]*)\).*)");
  int seen = 0;
  for (const Source& source : sources("witan", {"CMakeLists.txt"}))
    for (size_t i = 0; i < source.lines.size(); ++i) {
      std::smatch match;
      if (!std::regex_match(source.lines[i], match, library)) continue;
      ++seen;
      EXPECT_EQ(match[1], source.folder) << source.name << ":" << i + 1;
      std::istringstream words(match[2]);
      for (std::string to; words >> to;) {
        const std::string why = objection(source.folder, to);
        EXPECT_TRUE(why.empty()) << source.name << ":" << i + 1 << ": " << why;
      }
    }
  EXPECT_EQ(seen, static_cast<int>(kArrows.size()));
}

TEST(Layers, HeadersBeginWithAComment) {
  for (const char* top : {"witan", "tests"})
    for (const Source& source : sources(top, {".h", ".cuh"})) {
      ASSERT_FALSE(source.lines.empty()) << source.name << " is empty";
      EXPECT_EQ(source.lines.front().rfind("// ", 0), 0u)
          << source.name << ":1: a header opens with a comment that says what it is for";
    }
}

TEST(Layers, FilesAreShort) {
  for (const char* top : {"witan", "tests", "bench", "examples"})
    for (const Source& source : sources(top, kCode))
      EXPECT_LE(static_cast<int>(source.lines.size()), kMostLines)
          << source.name << " is longer than " << kMostLines << " lines: it probably holds two things";
}

// Text between pairs of ` in the lines.
std::vector<std::string> code_spans(const std::vector<std::string>& lines) {
  static const std::regex span("`([^`]+)`");
  std::vector<std::string> spans;
  for (const auto& line : lines)
    for (std::sregex_iterator at(line.begin(), line.end(), span), end; at != end; ++at) spans.push_back((*at)[1]);
  return spans;
}

Names words_of(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream in(text);
  Names words;
  for (std::string word; in >> word;) words.insert(word);
  return words;
}

// Whether `name` is a file or folder in the tree or in witan/, or a file name without extension.
bool exists(const std::string& name) {
  for (const fs::path& top : {kRoot, kRoot / "witan"})
    for (const char* extension : {"", ".h", ".cpp", ".cu", ".cuh"})
      if (fs::exists(top / (name + extension))) return true;
  return false;
}

// The table of docs/architecture.md with this heading: a row maps each name on its left to the names on its right ("–":
// none).
Arrows table_of_arrows(const std::string& heading) {
  const std::regex row(R"(^\| ([a-z0-9_/, ]+) \| (–|[a-z0-9_/, ]+) \|.*$)");
  Arrows arrows;
  bool inside = false;
  for (const auto& line : lines_of(kRoot / "docs/architecture.md")) {
    std::smatch match;
    if (line == heading)
      inside = true;
    else if (line.empty())
      inside = false;
    else if (inside && std::regex_match(line, match, row))
      for (const auto& name : words_of(match[1])) arrows[name] = match[2] == "–" ? Names{} : words_of(match[2]);
  }
  return arrows;
}

TEST(Layers, TheTableMatchesTheArchitecturePage) {
  Arrows arrows = kArrows;
  arrows.erase("base");  // includes nothing, so it has no row
  arrows["cli"] = {"all"};
  EXPECT_EQ(table_of_arrows("| folder | may include |"), arrows);
  expect_no_cycles(kArrows);
}

// The page has the only table of rooms (subfolders): "kernels/gemm", or "data" for files directly in a folder. kernels
// and ops have their own tables there, which also say what each room holds.
Arrows table_of_rooms() {
  Arrows rooms = table_of_arrows("| room | may include |");
  for (const std::string folder : {"kernels", "ops"})
    for (const auto& [room, direct] : table_of_arrows("| room of " + folder + " | may include | holds |")) {
      Names& arrows = rooms[folder + "/" + room];
      for (const auto& to : direct) arrows.insert(folder + "/" + to);
    }
  return rooms;
}

// "witan/kernels/gemm/cpu/gemm_blocks.h" is in the room "kernels/gemm", "witan/data/batch.h" in "data".
std::string room_of(const std::string& path) {
  const fs::path inside = fs::path(path).parent_path().lexically_relative("witan");
  auto part = inside.begin();
  fs::path room = *part;
  if (++part != inside.end()) room /= *part;
  return room.generic_string();
}

TEST(Layers, RoomsIncludeEachOtherAsTheArchitecturePageAllows) {
  const Arrows rooms = table_of_rooms();
  expect_no_cycles(rooms);
  std::map<std::string, int> seen;  // includes within a folder that has subfolders
  for (const auto& [room, arrows] : rooms) {
    EXPECT_TRUE(fs::is_directory(kRoot / "witan" / room)) << "docs/architecture.md names no room: " << room;
    seen[room.substr(0, room.find('/'))] = 0;
  }
  const std::regex include(R"re(^\s*#\s*include\s*"(witan/([^/"]+)/[^"]+)".*)re");
  for (const Source& source : sources("witan", kCode)) {
    if (!seen.count(source.folder)) continue;
    ASSERT_TRUE(rooms.count(room_of(source.name))) << source.name << " lies in a room without a row";
    std::smatch match;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      if (!std::regex_match(source.lines[i], match, include) || match[2] != source.folder) continue;
      ++seen[source.folder];
      const std::string why = objection(room_of(source.name), room_of(match[1]), rooms);
      EXPECT_TRUE(why.empty()) << source.name << ":" << i + 1 << ": " << source.lines[i] << ": " << why;
    }
  }
  for (const std::string folder :
       {"base", "comm", "convert", "data", "kernels", "moe", "ops", "planner", "report", "tokenizer", "train"})
    EXPECT_GT(seen[folder], 0) << folder << " has no table, or no includes";
}

// With more files than this in one folder, nothing is found quickly.
TEST(Layers, RoomsAreSmall) {
  const Arrows rooms = table_of_rooms();
  std::map<std::string, int> files;
  for (const Source& source : sources("witan", kCode))
    if (rooms.count(room_of(source.name))) ++files[fs::path(source.name).parent_path()];
  EXPECT_GE(files.size(), rooms.size());
  for (const auto& [folder, count] : files) EXPECT_LE(count, kMostFiles) << folder;
}

TEST(Layers, PagesNamePathsThatExist) {
  Names tops = {"witan", "tests", "docs", "bench", "recipes", "examples", "scripts", "cmake", "fuzz"};
  for (const auto& [folder, arrows] : kArrows) tops.insert(folder);
  const std::regex path(
      R"(([a-z]+)(/[a-z0-9_.]+)+/?)");  // paths have no capitals: NAME is a placeholder, Suite.Test a test
  std::vector<Source> pages = sources("docs", {".md"});
  for (const char* name : {"README.md", "CONTRIBUTING.md"}) pages.push_back({name, {}, lines_of(kRoot / name)});
  int seen = 0;
  for (const Source& page : pages)
    for (const auto& span : code_spans(page.lines)) {
      std::smatch match;
      if (!std::regex_match(span, match, path) || !tops.count(match[1])) continue;
      ++seen;
      EXPECT_TRUE(exists(span)) << page.name << " names " << span << ", which is neither in the tree nor in witan/";
    }
  EXPECT_GT(seen, 0);
}

// Pages name tests like ctest does, by folder and the beginning of Suite.Name; NAME is a placeholder.
TEST(Layers, PagesNameTestsThatExist) {
  const std::regex declared(R"(^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+), (\w+)\).*)"),
      named(R"(([a-z]+)/[A-Z][a-z][A-Za-z0-9]*(\.[A-Za-z0-9]+)?)");
  std::map<std::string, Names> tests;  // by folder
  for (const Source& source : sources("tests", {".cpp"}))
    for (const auto& line : source.lines)
      if (std::smatch match; std::regex_match(line, match, declared))
        tests[source.folder].insert(source.folder + "/" + match[1].str() + "." + match[2].str());
  int seen = 0;
  for (const Source& page : sources("docs", {".md"}))
    for (const auto& span : code_spans(page.lines)) {
      std::smatch match;
      if (!std::regex_match(span, match, named) || !tests.count(match[1])) continue;
      ++seen;
      const auto first = tests[match[1]].lower_bound(span);
      EXPECT_TRUE(first != tests[match[1]].end() && first->starts_with(span))
          << page.name << " names no test: " << span;
    }
  EXPECT_GT(seen, 100) << "docs/parity.md names a test for each of its lines";
}

// Links are relative to the page's folder; #fragments are not checked.
TEST(Layers, PagesLinkToFilesThatExist) {
  const std::regex link(R"(\]\(([^)#\s]+)(#[^)]*)?\))");
  for (const Source& page : sources("docs", {".md"}))
    for (const auto& line : page.lines)
      for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at) {
        const std::string to = (*at)[1];
        if (to.find("://") == std::string::npos) {
          EXPECT_TRUE(fs::exists((kRoot / page.name).parent_path() / to)) << page.name << " links to " << to;
        }
      }
}

}  // namespace
}  // namespace witan
