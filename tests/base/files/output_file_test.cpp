#include "witan/base/files/output_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

OutputFile figures(const fs::path& path) {
  return {path, "witan test: --json", "file of figures", [](std::string_view bytes) {
            return is_json_with(bytes, {"run", "step"});
          }};
}

TEST(OutputFile, CreatesOrReplacesFilesOfItsKind) {
  const TempFolder folder;
  const OutputFile file = figures(folder / "file");
  for (const char* text : {R"({"run": 1, "step": 1})", R"({"run": 1, "step": 2})"}) {
    EXPECT_NO_THROW(file.require_free());
    file.write(text);
    EXPECT_EQ(read_file(file.path), text);
  }
}

TEST(OutputFile, KeepsOtherFiles) {
  const TempFolder folder;
  const fs::path other = folder / "other", own = folder / "own", link = folder / "link", pipe = folder / "pipe";
  write_file_atomically(other, "mine");
  write_file_atomically(own, R"({"run": 1, "step": 1})");
  fs::create_symlink("own", link);
  fs::create_symlink("nowhere", folder / "dangling");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path :
       {other, link, folder / "dangling", pipe, fs::path("/dev/null"), fs::path("/dev/stdout")}) {
    const auto refused =
        HasSubstr(cat("witan test: --json ", path.string(), " is there already and is no file of figures"));
    EXPECT_THAT(message_of<UsageError>([&] { figures(path).require_free(); }), refused);
    EXPECT_THAT(message_of<UsageError>([&] { figures(path).write("{}"); }),
                AllOf(refused, HasSubstr("name a new file, or remove it first")));
  }
  EXPECT_THAT(message_of<UsageError>([&] { figures(folder.path()).require_free(); }), HasSubstr("is a folder"));
  EXPECT_THAT(message_of<UsageError>([&] { figures(folder / "new/").require_free(); }), HasSubstr("is a folder"));
  EXPECT_EQ(read_file(other), "mine");
  EXPECT_EQ(read_file(own), R"({"run": 1, "step": 1})");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_FALSE(fs::exists(folder / "nowhere"));
}

TEST(OutputFile, RecognizesJsonByItsKeys) {
  EXPECT_TRUE(is_json_with(R"({"a": 1, "b": 2, "c": 3})", {"a", "b"}));
  for (const char* other : {"", "{", R"({"a": 1})", R"(["a", "b"])", R"({"a": 1, "b": 2} more)", R"("a b")"})
    EXPECT_FALSE(is_json_with(other, {"a", "b"})) << other;
  EXPECT_TRUE(begins_with_json("{\"a\": 1}\n{\"b\": 1}\n", {"a"}));
  EXPECT_FALSE(begins_with_json("{\"a\": 1}\n{\"b\": 1}\n", {"b"}));
}

TEST(RefuseExisting, ErrorsNameTheExistingPath) {
  const TempFolder folder;
  EXPECT_NO_THROW(refuse_existing(folder / "free"));
  write_file_atomically(folder / "taken", "");
  fs::create_directories(folder / "folder");
  fs::create_symlink("nowhere", folder / "link");
  for (const char* name : {"taken", "folder", "link"})
    EXPECT_EQ(
        message_of<ConfigError>([&] { refuse_existing(folder / name, "--to"); }),
        (folder / name).string() + " exists already, and this command would make it: remove it, or give another --to");
}

}  // namespace
}  // namespace witan::test
