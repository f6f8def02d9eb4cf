#include "witan/data/sources.h"

#include "compress.h"
#include "data_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SourcesTest : public ::testing::Test {
 protected:
  std::vector<std::string> names(const Sources& sources) const {
    std::vector<std::string> all;
    for (const Source& source : sources.files)
      all.push_back(source.path.lexically_relative(fs::canonical(folder_.path())).string() +
                    (source.kind == SourceKind::jsonl ? ":rows" : ""));
    return all;
  }

  TempFolder folder_;
};

TEST_F(SourcesTest, WalksFoldersInOrder) {
  put(folder_ / "b.txt", "b");
  put(folder_ / "sub/deep/a.md", "a");
  put(folder_ / "sub/rows.jsonl", "{}");
  put(folder_ / "sub/rows.json.gz", gzip("{}"));
  put(folder_ / "sub/c.pod.zst", zstd("c"));
  put(folder_ / "Makefile", "all:");
  put(folder_ / ".hidden/d.txt", "d");
  put(folder_ / ".e.txt", "e");
  put(folder_ / "picture.png", std::string("\x89PNG\0\0", 6));
  const Sources sources = find_sources({folder_.path()});
  EXPECT_EQ(names(sources), (std::vector<std::string>{"Makefile", "b.txt", "sub/c.pod.zst", "sub/deep/a.md",
                                                      "sub/rows.json.gz:rows", "sub/rows.jsonl:rows"}));
  EXPECT_EQ(sources.skipped, std::vector<fs::path>{fs::canonical(folder_ / "picture.png")});
  EXPECT_EQ(sources.files[1].bytes, 1u);
  EXPECT_GT(sources.files[1].modified_ns, 1'600'000'000'000'000'000);
}

TEST_F(SourcesTest, TakesEachFileOnce) {
  const fs::path file = put(folder_ / "a.txt", "a");
  fs::create_symlink(file, folder_ / "link.txt");
  EXPECT_EQ(names(find_sources({file, folder_.path(), folder_ / "." / "a.txt"})), std::vector<std::string>{"a.txt"});
}

TEST_F(SourcesTest, DoesNotFollowLinksToFolders) {
  put(folder_ / "a.txt", "a");
  fs::create_directory_symlink(folder_.path(), folder_ / "loop");
  EXPECT_EQ(names(find_sources({folder_.path()})), std::vector<std::string>{"a.txt"});
}

TEST_F(SourcesTest, SaysWhatItCannotUse) {
  EXPECT_THAT(message_of<DataError>([&] { find_sources({folder_ / "absent"}); }), HasSubstr("absent"));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({folder_.path()}); }),
              AllOf(HasSubstr("no text found"), HasSubstr(".jsonl")));
  EXPECT_THROW(find_sources({}), DataError);
  const fs::path binary = put(folder_ / "a.out", std::string("\x7f"
                                                             "ELF\0",
                                                             5));
  EXPECT_THAT(message_of<DataError>([&] { find_sources({binary}); }), AllOf(HasSubstr("a.out"), HasSubstr("binary")));
  EXPECT_THROW(find_sources({"/dev/null"}), DataError);
}

TEST_F(SourcesTest, DefaultCorpusFindsPodFilesOnce) {
  for (int i = 0; i < 150; ++i) put(folder_ / ("5.36.0/pod/" + std::to_string(i) + ".pod"), "=head1");
  fs::create_directory_symlink(folder_ / "5.36.0", folder_ / "5.36");
  put(folder_ / "5.36.0/pod/README", "no");
  EXPECT_EQ(default_corpus(folder_.path()).size(), 150u);
}

TEST_F(SourcesTest, DefaultCorpusNamesTheWaysOut) {
  put(folder_ / "5.36.0/pod/perl.pod", "=head1");
  const auto find = [&](const fs::path& root) { return message_of<DataError>([&] { default_corpus(root); }); };
  EXPECT_THAT(find(folder_.path()), AllOf(HasSubstr("1 .pod"), HasSubstr("--data"), HasSubstr("perl-doc")));
  EXPECT_THAT(find(folder_ / "absent"), HasSubstr("perl-doc"));
}

}  // namespace
}  // namespace witan
