// Tests saving: the files, which rank writes them, and failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmath>

#include "checkpoint/checkpoint_support.h"
#include "support/flushed.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;

// The error of a save by `size` ranks, which all of them must throw.
template <class E>
std::string save_error(const fs::path& folder, int size,
                       const std::function<void(CheckpointContent&, int rank)>& spoil) {
  std::vector<std::string> messages(static_cast<size_t>(size));
  on_ranks(size, [&](Group& world, Stream& stream) {
    CheckpointContent content{5, model_state(stream, world.rank(), size, 5), Json::object(), {}};
    spoil(content, world.rank());
    messages[static_cast<size_t>(world.rank())] =
        message_of<E>([&] { save_checkpoint(world, stream, folder, content); });
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

TEST(Save, IsDeterministic) {
  const TempFolder a, b;
  const fs::path first = save_model(a.path(), 30, 3), second = save_model(b.path(), 30, 3);
  const auto names = names_in(first);
  EXPECT_THAT(names, ElementsAre("config.toml", "manifest.json", "shard-00000.safetensors", "shard-00001.safetensors",
                                 "shard-00002.safetensors"));
  for (const std::string& name : names) EXPECT_EQ(read_file(first / name), read_file(second / name)) << name;
  EXPECT_THAT(names_in(a.path()), ElementsAre("step-30"));
}

// A rename is durable once the folder is flushed after it.
TEST(Save, FlushesFoldersAfterAllFiles) {
  const TempFolder folder;
  save_model(folder.path(), 1, 2);
  flushed.clear();
  save_model(folder.path(), 2, 2);
  ASSERT_FALSE(flushed.empty());
  EXPECT_EQ(flushed.back().path, folder.path());
  EXPECT_THAT(flushed.back().names, ElementsAre("step-1", "step-2"));
  // The new checkpoint's own folder, under its hidden name, when all files had their names.
  const Flushed& own = flushed[flushed.size() - 2];
  EXPECT_THAT(own.path.string(), HasSubstr(".tmp-step-2"));
  EXPECT_THAT(own.names,
              ElementsAre("config.toml", "manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"));
}

// Flushes each file's bytes once, and names once, except those of other ranks' files, which may be on other hosts.
TEST(Save, FlushesNothingTwice) {
  for (const int ranks : {1, 3}) {
    const TempFolder folder;
    save_model(folder.path(), 1, ranks);
    flushed.clear();
    save_model(folder.path(), 2, ranks);
    const auto own_folder = std::ranges::count_if(flushed, [](const Flushed& one) {
      return one.path.filename().string().starts_with(".tmp-step-2") && !one.names.empty();
    });
    EXPECT_EQ(own_folder, ranks) << "rank 0's with the manifest";
    EXPECT_EQ(std::ranges::count(flushed, folder.path(), &Flushed::path), 1);
    const int files = ranks + 2;  // shards, config.toml, manifest.json
    EXPECT_EQ(std::ssize(flushed), files + ranks + 1);
  }
}

TEST(Save, WritesReplicasOnceAndNothingForRanksWithoutRows) {
  const TempFolder folder;
  on_ranks(3, [&](Group& world, Stream& stream) {
    CheckpointContent content;
    content.tensors = {counted<float>(stream, "w", {4, 2}, 0, 4, 0, world.rank() == 1)};
    EXPECT_EQ(save_checkpoint(world, stream, folder.path(), content), folder / "step-0");
  });
  EXPECT_THAT(names_in(folder / "step-0"), ElementsAre("manifest.json", "shard-00001.safetensors"));
  const SafetensorsFile shard(folder / "step-0" / "shard-00001.safetensors");
  ASSERT_EQ(shard.tensors().size(), 1U);
  EXPECT_EQ(shard.tensors()[0].info.name, "w");
  EXPECT_EQ(shard.tensors()[0].bytes.size(), 32U);
}

TEST(Save, NamesPartsOfOneTensorOnOneRankByRows) {
  const TempFolder folder;
  on_ranks(1, [&](Group& world, Stream& stream) {
    CheckpointContent content;
    content.tensors = {counted<float>(stream, "w", {6, 2}, 4, 2, 0), counted<float>(stream, "w", {6, 2}, 0, 4, 0)};
    save_checkpoint(world, stream, folder.path(), content);
    const std::vector<StateTensor> whole = {counted<float>(stream, "w", {6, 2}, 0, 6, 77)};
    load_tensors(open_checkpoint(folder / "step-0"), whole);
    expect_equal(whole, {counted<float>(stream, "w", {6, 2}, 0, 6, 0)});
  });
  const SafetensorsFile shard(folder / "step-0" / "shard-00000.safetensors");
  EXPECT_NE(shard.find("w[0:4]"), nullptr);
  EXPECT_NE(shard.find("w[4:6]"), nullptr);
}

TEST(Save, ReplacesACheckpointOfTheSameStep) {
  const TempFolder folder;
  save_model(folder.path(), 7, 4);
  put(folder / "step-7" / "shard-00003.safetensors", "damaged");
  save_model(folder.path(), 7, 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step-7"));
  EXPECT_THAT(names_in(folder / "step-7"),
              ElementsAre("config.toml", "manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"));
  verify_checkpoint(open_checkpoint(folder / "step-7"));
}

TEST(Save, RemovesLeftoversOfDeadRuns) {
  const TempFolder folder;
  fs::create_directories(folder / ".tmp-step-4.123" / "deep");
  fs::create_directories(folder / cat(".tmp-step-30.", ::getpid()));
  fs::create_directories(folder / ".old-step-2.9");
  put(folder / ".tmp-step-4.123" / "shard-00000.safetensors", "part");
  put(folder / "notes.txt", "mine");
  save_model(folder.path(), 30, 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("notes.txt", "step-30"));
}

TEST(Save, RefusesRowsWrittenByNoneOrSeveral) {
  const TempFolder folder;
  EXPECT_THAT(
      save_error<CheckpointError>(folder.path(), 3,
                                  [](CheckpointContent& content, int rank) {
                                    if (rank == 1) content.tensors[1].writes = false;
                                  }),
      AllOf(HasSubstr("cannot save step 5"), HasSubstr("tensor \"layers.0.experts.up_proj\": elements 18 to 30")));
  EXPECT_THAT(save_error<CheckpointError>(folder.path(), 3,
                                          [](CheckpointContent& content, int) { content.tensors[0].writes = true; }),
              HasSubstr("tensor \"embedding.weight\": the element 0 is in two parts"));
  EXPECT_THAT(save_error<CheckpointError>(folder.path(), 2,
                                          [](CheckpointContent& content, int rank) {
                                            if (rank == 1) content.tensors[2].global_shape = {6, 3};
                                          }),
              HasSubstr("ranks disagree about \"adam.m/embedding.weight\": float32 [5, 3] and float32 [6, 3]"));
  EXPECT_THAT(save_error<Error>(folder.path(), 2,
                                [](CheckpointContent& content, int rank) {
                                  if (rank == 1) content.tensors[2].region = Region(12, 6);
                                }),
              HasSubstr("does not hold elements [12, 18) of the global [5, 3] (rank 1)"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Save, RefusesScalarsAndFilesThatCannotBeLoaded) {
  const TempFolder folder;
  EXPECT_THAT(save_error<CheckpointError>(folder.path(), 2,
                                          [](CheckpointContent& content, int) {
                                            content.scalars = {{"loss", std::nan("")}};
                                          }),
              HasSubstr("a scalar is not a finite number"));
  EXPECT_THAT(save_error<CheckpointError>(folder.path(), 2,
                                          [](CheckpointContent& content, int) { content.scalars = Json::array(); }),
              HasSubstr("scalars must be a JSON object"));
  for (const char* name : {"../x", "manifest.json", "shard-00000.safetensors"})
    save_error<CheckpointError>(folder.path(), 2, [&](CheckpointContent& content, int) {
      content.files = {{name, "x"}};
    });
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Save, RefusesAFileInPlaceOfTheFolder) {
  const TempFolder folder;
  put(folder / "file", "in the way");
  EXPECT_THAT(save_error<CheckpointError>(folder / "file", 2, [](CheckpointContent&, int) {}),
              AllOf(HasSubstr((folder / "file").string()), HasSubstr("(rank 0)")));
}

TEST(Save, RefusesReadOnlyFolders) {
  if (::geteuid() == 0) GTEST_SKIP() << "root can write everywhere";
  const TempFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(save_error<CheckpointError>(folder.path(), 2, [](CheckpointContent&, int) {}),
              HasSubstr("Permission denied"));
}

// A small mounted disk; even root may not mount everywhere.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options) : mounted_(::mount("witan", path().c_str(), "tmpfs", 0, options) == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  const fs::path& path() const { return folder_.path(); }
  bool mounted() const { return mounted_; }

 private:
  TempFolder folder_;
  bool mounted_;
};

TEST(Save, RefusesTooSmallDisksBeforeWriting) {
  const SmallDisk disk("size=64k");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  const fs::path kept = save_model(disk.path(), 1, 2);
  const std::string message = save_error<DiskFullError>(disk.path(), 2, [](CheckpointContent& content, int rank) {
    if (rank == 0) content.files = {{"large.bin", std::string(100'000, 'x')}};
  });
  EXPECT_THAT(message, AllOf(HasSubstr("cannot save step 5"), HasSubstr("it needs 1"),
                             HasSubstr("are free on that disk"), HasSubstr("the checkpoint of step 1 is intact"),
                             HasSubstr("the same command then resumes from it")));
  EXPECT_THAT(names_in(disk.path()), ElementsAre("step-1"));
  verify_checkpoint(open_checkpoint(kept));
  EXPECT_THAT(save_error<DiskFullError>(disk.path() / "none yet", 2,
                                        [](CheckpointContent& content, int rank) {
                                          if (rank == 0) content.files = {{"large.bin", std::string(100'000, 'x')}};
                                        }),
              HasSubstr("no checkpoint was saved yet. Free some space; the same command then starts the run again"));
}

TEST(Save, KeepsCheckpointsWhenTheDiskFillsUp) {
  const SmallDisk disk("size=1m,nr_inodes=9");  // enough bytes, so that only writing finds out
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  const fs::path kept = save_model(disk.path(), 1, 1);  // with the root 5 inodes; the next needs 5 more
  EXPECT_THAT(save_error<DiskFullError>(disk.path(), 3, [](CheckpointContent&, int) {}), HasSubstr("the disk is full"));
  EXPECT_THAT(names_in(disk.path()), ElementsAre("step-1"));
  verify_checkpoint(open_checkpoint(kept));
}

}  // namespace
}  // namespace witan
