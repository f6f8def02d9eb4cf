#include "witan/checkpoint/stored_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;
using test::TempFolder;
using ::testing::HasSubstr;

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i * 7));
  return bytes;
}

TEST(StoredWriter, DtypesThatNoTensorHasComeBack) {
  const TempFolder folder;
  const std::vector<StoredTensor> order = {{"a", "F16", {2, 3}, 12}, {"b", "F8_E4M3", {5}, 5}, {"c", "U8", {0}, 0}};
  const auto bytes = some_bytes(17);
  StoredWriter writer(folder / "x.safetensors", order, {{"made", "here"}});
  writer.write(bytes.data(), 7);  // however they are cut
  writer.write(bytes.data() + 7, 10);
  const FileDigest digest = writer.finish();
  const MappedFile file(folder / "x.safetensors");
  EXPECT_EQ(digest.bytes, file.bytes().size());
  EXPECT_EQ(digest.hash, hash_hex(file.bytes().data(), file.bytes().size()));
  std::map<std::string, std::string> metadata;
  const auto tensors = parse_safetensors(file.bytes(), "x", stored_element_bytes, metadata);
  EXPECT_EQ(metadata.at("made"), "here");
  ASSERT_EQ(tensors.size(), 3U);
  std::vector<std::byte> read;
  for (const PlacedTensor& tensor : tensors) read.insert(read.end(), tensor.bytes.begin(), tensor.bytes.end());
  EXPECT_EQ(read, bytes);
}

TEST(StoredWriter, AFileThatIsNotFullDoesNotAppear) {
  const TempFolder folder;
  const auto bytes = some_bytes(17);
  {
    StoredWriter writer(folder / "x.safetensors", {{"a", "U8", {17}, 17}});
    writer.write(bytes.data(), 16);
    EXPECT_THAT(message_of<ShapeError>([&] { writer.finish(); }), HasSubstr("of its"));
  }
  EXPECT_FALSE(fs::exists(folder / "x.safetensors"));
}

TEST(StoredWriter, DtypesOfNoWeightsAreRefused) {
  EXPECT_THAT(message_of<CheckpointError>([] { stored_element_bytes("C64", "file"); }),
              HasSubstr("file: dtype \"C64\" is none that this program reads"));
}

}  // namespace
}  // namespace witan
