#include "witan/data/megatron/gpt_data.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "data/data_support.h"
#include "support/comes_true.h"
#include "witan/base/error.h"
#include "witan/data/batches/batch.h"
#include "witan/data/megatron/gpt_index.h"

namespace witan::megatron {
namespace {

std::vector<int> shuffled(uint32_t seed, size_t size) {
  std::vector<int> values(size);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandom random(seed);
  random.shuffle(std::span(values));
  return values;
}

// Expected: numpy.random.RandomState(seed).shuffle(numpy.arange(size)) of NumPy 2.4.6.
TEST(NumpyRandom, ShufflesLikeNumpy) {
  EXPECT_EQ(shuffled(1234, 10), (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  EXPECT_EQ(shuffled(0, 7), (std::vector<int>{6, 2, 1, 3, 0, 5, 4}));
  EXPECT_EQ(shuffled(4294967295u, 6), (std::vector<int>{1, 4, 5, 0, 2, 3}));
  EXPECT_EQ(shuffled(5, 1), std::vector<int>{0});
  EXPECT_TRUE(shuffled(5, 0).empty());
}

// The state continues from one shuffle to the next; arrays of zero or one element draw nothing.
TEST(NumpyRandom, KeepsItsStateBetweenShuffles) {
  NumpyRandom random(42);
  std::vector<int> first = {0, 1, 2, 3, 4}, one = {7}, second = {0, 1, 2, 3, 4};
  random.shuffle(std::span(first));
  random.shuffle(std::span(one));
  random.shuffle(std::span(second));
  EXPECT_EQ(first, (std::vector<int>{1, 4, 2, 0, 3}));
  EXPECT_EQ(second, (std::vector<int>{3, 1, 2, 0, 4}));
}

// Expected: numpy.random.RandomState(9).randint(0, 2**40, dtype=int64), which uses the same masks above 2^32 as below.
TEST(NumpyRandom, DrawsWideNumbersHighWordFirst) {
  std::mt19937 words(9);
  const uint64_t high = words(), low = words();
  EXPECT_EQ(NumpyRandom(9).interval((uint64_t{1} << 40) - 1), (high << 32 | low) & ((uint64_t{1} << 40) - 1));
  EXPECT_EQ(NumpyRandom(9).interval((uint64_t{1} << 40) - 1), 542731227484u);
}

using nlohmann::json;
using ::testing::HasSubstr;

constexpr size_t kMostParts = 3;  // of a blend with compared indices
constexpr int64_t kRead = 40;     // samples of each split with compared tokens

// Defined in tests/golden/data/megatron/make_golden.py.
template <class Values>
std::string checksum(const Values& values) {
  uint64_t sum = 0, i = 0;
  for (const auto value : values) {
    const uint64_t odd = (2 * i++ + 1) * 0x9E3779B97F4A7C15u;
    sum += (static_cast<uint64_t>(static_cast<int64_t>(value)) + 1) * (odd ^ (odd >> 29));
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(sum));
  return text.data();
}

template <class Values>
std::string raw(const Values& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

// IndexedWriter would wait for the disk.
void write_dataset(const fs::path& prefix, const json& dataset) {
  const uint64_t salt = dataset["salt"], longest = dataset["longest"];
  std::vector<uint16_t> tokens;
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers, documents = {0};
  for (uint64_t i = 0; i < dataset["sequences"].get<uint64_t>(); ++i) {
    const uint64_t length = (((i + 1) * 2654435761u + salt * 40503) % (uint64_t{1} << 32) >> 7) % (longest + 1);
    pointers.push_back(static_cast<int64_t>(2 * tokens.size()));
    lengths.push_back(static_cast<int32_t>(length));
    documents.push_back(static_cast<int64_t>(lengths.size()));
    for (uint64_t j = 0; j + 1 < length; ++j)
      tokens.push_back(static_cast<uint16_t>(1 + (i * 31 + j * 7 + salt * 13) % 60000));
    if (length > 0) tokens.push_back(0);
  }
  const std::array<uint64_t, 2> counts = {lengths.size(), documents.size()};
  put(prefix.string() + ".bin", raw(tokens));
  put(prefix.string() + ".idx",
      std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18) + raw(counts) + raw(lengths) + raw(pointers) + raw(documents));
}

Blend blend_of(const json& words, const fs::path& folder) {
  std::string list;
  for (const std::string word : words) list += (word.starts_with("d") ? (folder / word).string() : word) + ",";
  return parse_blend(list, "data_path");
}

GptDataOptions options_of(const json& golden, const fs::path& folder) {
  GptDataOptions options;
  options.seed = golden["seed"];
  options.sequence_length = golden["sequence_length"];
  for (size_t part = 0; part < 3; ++part) {
    options.whole[part] = golden["samples"][part].is_null();
    if (!options.whole[part]) golden["samples"][part].get_to(options.samples[part]);
  }
  if (golden.contains("split")) {
    options.blend = blend_of(golden["blend"], folder);
    options.shares = parse_split(golden["split"]);
    return options;
  }
  for (size_t part = 0; part < 3; ++part)
    if (!golden["blend_of"][part].is_null()) options.blend_of[part] = blend_of(golden["blend_of"][part], folder);
  return options;
}

json indices_of(const GptSamples& samples) {
  const auto documents = samples.document_index();
  const auto shuffle = samples.shuffle_index();
  json first = json::array();
  for (size_t i = 0; i < std::min<size_t>(documents.size(), 3); ++i) first.push_back(documents[i]);
  for (size_t i = 0; i < std::min<size_t>(shuffle.size(), 3); ++i) first.push_back(shuffle[i]);
  return {{"document", {documents.size(), checksum(documents)}},
          {"place", checksum(samples.places())},
          {"offset", checksum(samples.offsets())},
          {"shuffle", {shuffle.size(), checksum(shuffle)}},
          {"first", first}};
}

// First position of the ids that each token may attend to.
std::vector<int64_t> attends_from(const Batch& batch) {
  std::vector<int64_t> from;
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    const auto s = static_cast<int64_t>(t) % batch.sequence_length;
    from.push_back(s == 0 || batch.sequence_ids[t] != batch.sequence_ids[t - 1] ? s : from.back());
  }
  return from;
}

json part_of(const std::shared_ptr<const SampleSource>& samples, const json& golden) {
  if (!samples) return nullptr;
  json part = {{"size", *samples->size()}, {"parts", json::array()}};
  if (const auto* blended = dynamic_cast<const BlendedSamples*>(samples.get())) {
    for (size_t i = 0; i < std::min(blended->parts().size(), kMostParts); ++i)
      part["parts"].push_back(indices_of(*blended->parts()[i]));
    part["blend"] = {checksum(blended->dataset_index()), checksum(blended->dataset_sample_index())};
  } else {
    part["parts"].push_back(indices_of(dynamic_cast<const GptSamples&>(*samples)));
  }
  BatchOptions options{.end_of_text = 0};
  golden["reset_position_ids"].get_to(options.reset_position_ids);
  golden["reset_attention_mask"].get_to(options.reset_attention_mask);
  golden["eod_mask_loss"].get_to(options.eod_mask_loss);
  const Batch batch = make_batch(*samples, 0, std::min(*samples->size(), kRead), options);
  part["tokens"] = checksum(batch.tokens);
  part["labels"] = checksum(batch.targets);
  part["position_ids"] = checksum(batch.positions);
  part["loss_mask"] = checksum(batch.loss_mask);
  part["attends_from"] = checksum(attends_from(batch));
  return part;
}

json read_golden(const std::string& name) {
  return json::parse(read_file(golden("megatron/" + name)));
}

void expect_same(const json& cases) {
  for (size_t i = 0; i < cases.size(); ++i) {
    const TempFolder folder;
    for (size_t d = 0; d < cases[i]["datasets"].size(); ++d)
      write_dataset(folder / ("d" + std::to_string(d)), cases[i]["datasets"][d]);
    const GptData data = open_gpt_data(options_of(cases[i], folder.path()));
    for (size_t part = 0; part < 3; ++part)
      EXPECT_EQ(part_of(data[part], cases[i]), cases[i]["parts"][part]) << "case " << i << ", " << kPartNames[part];
  }
}

// Written by Megatron-Core: 30 random combinations of sizes, splits, blends, seeds and epochs.
TEST(GptData, IndicesAndSamplesMatchMegatronCore) {
  const json cases = read_golden("gpt_data.json");
  ASSERT_EQ(cases.size(), 30u);
  expect_same(cases);
}

// Here every validation sample is read once.
TEST(GptData, WholeSplitsMatchMegatronCore) {
  const json golden = read_golden("exhaustive.json");
  ASSERT_EQ(golden["cases"].size(), 12u);
  expect_same(golden["cases"]);
}

TEST(GptData, ExhaustiveBlendsMatchMegatronCoreAndUseEverySampleOnce) {
  const json golden = read_golden("exhaustive.json");
  ASSERT_EQ(golden["blends"].size(), 40u);
  for (const json& blend : golden["blends"]) {
    const auto sizes = blend["sizes"].get<std::vector<int64_t>>();
    const BlendIndex index = build_exhaustive_blending_indices(sizes);
    EXPECT_EQ(json({checksum(index.dataset), checksum(index.sample)}), blend["blend"]) << blend;
    std::vector<int64_t> next(sizes.size(), 0);
    for (size_t k = 0; k < index.dataset.size(); ++k) {
      const auto d = static_cast<size_t>(index.dataset[k]);
      if (k < blend["first"].size()) {
        EXPECT_EQ(index.dataset[k], blend["first"][k].get<int64_t>());
      }
      EXPECT_EQ(index.sample[k], next[d]++);
    }
    EXPECT_EQ(next, sizes);
  }
}

class GptDataTest : public ::testing::Test {
 protected:
  // Two datasets of 60 sequences.
  GptDataTest() {
    for (const int salt : {1, 2})
      write_dataset(folder_ / ("d" + std::to_string(salt)), {{"sequences", 60}, {"longest", 20}, {"salt", salt}});
    options_.blend = Blend{{(folder_ / "d1").string(), (folder_ / "d2").string()}, {1, 3}};
    options_.shares = parse_split("9,1");
    options_.samples = {200, 10, 5};
    options_.sequence_length = 16;
  }
  std::vector<fs::path> cached() const {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(folder_ / "cache")) files.push_back(file.path());
    std::ranges::sort(files);
    return files;
  }
  std::vector<int32_t> first(const GptDataOptions& options) const {
    return make_batch(*open_gpt_data(options)[0], 0, 8, {}).tokens;
  }
  std::string refused(const GptDataOptions& options) const {
    return message_of<DataError>([&] { open_gpt_data(options); });
  }

  TempFolder folder_;
  GptDataOptions options_;
};

TEST_F(GptDataTest, IndicesAreCachedAndRebuiltIfDamaged) {
  const auto tokens = first(options_);
  const auto files = cached();
  ASSERT_EQ(files.size(), 6u) << "two datasets and their blend, for training and validation";
  std::vector<std::string> before;
  for (const fs::path& file : files) before.push_back(read_file(file));
  const auto written = fs::last_write_time(files[0]);
  EXPECT_EQ(first(options_), tokens);
  EXPECT_EQ(fs::last_write_time(files[0]), written) << "read, not rebuilt";
  for (size_t i = 0; i < files.size(); ++i)
    for (const size_t at : {size_t{0}, size_t{8}, size_t{20}, size_t{40}, before[i].size() / 2, before[i].size() - 1}) {
      std::string damaged = before[i];
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      put(files[i], i % 2 == 0 ? damaged : damaged.substr(0, at));
      EXPECT_EQ(first(options_), tokens);
      EXPECT_TRUE(read_file(files[i]) == before[i]) << files[i] << " with byte " << at << " changed";
    }
}

TEST_F(GptDataTest, IndicesDependOnTheirInputs) {
  const auto tokens = first(options_);
  const size_t files = cached().size();
  for (const auto change : {+[](GptDataOptions& o) { o.seed = 7; }, +[](GptDataOptions& o) { o.sequence_length = 15; },
                            +[](GptDataOptions& o) { o.samples[0] = 400; }}) {
    GptDataOptions changed = options_;
    change(changed);
    EXPECT_NE(first(changed), tokens);
  }
  EXPECT_GT(cached().size(), files + 3);
  write_dataset(folder_ / "d1", {{"sequences", 60}, {"longest", 20}, {"salt", 3}});
  EXPECT_NE(first(options_), tokens) << "including the lengths of a dataset";
  options_.cache = folder_ / "elsewhere";
  first(options_);
  EXPECT_TRUE(fs::exists(options_.cache));
}

// Indices of blends and epochs in the same folder that differ in a single setting are not mistaken for each other.
TEST_F(GptDataTest, IndicesInOneFolderAreDistinguished) {
  options_.cache = folder_ / "cache";
  open_gpt_data(options_);
  options_.blend->weights = {3, 1};
  EXPECT_NEAR(static_cast<double>(open_gpt_data(options_)[0]->use_of(100)[0].samples), 75, 1);
  options_.whole[0] = true;
  options_.blend->weights.clear();
  for (int order = 0; order < 2; ++order) {
    const auto train = open_gpt_data(options_)[0];
    const auto& parts = dynamic_cast<const BlendedSamples&>(*train).parts();
    EXPECT_NE(*parts[0]->size(), *parts[1]->size());
    EXPECT_EQ(train->use_of(*train->size())[0].samples, *parts[0]->size());
    std::swap(options_.blend->prefixes[0], options_.blend->prefixes[1]);
  }
  options_.whole[0] = false;
  options_.blend->prefixes.pop_back();
  options_.samples[0] = 1;
  const auto one = open_gpt_data(options_)[0];
  const int64_t of_one = (dynamic_cast<const GptSamples&>(*one).epochs().tokens - 1) / 16;
  options_.samples[0] = of_one + 2;  // the last epoch is used only partly, so it is shuffled separately
  const auto little = first(options_);
  options_.samples[0] = 2 * of_one;
  EXPECT_NE(first(options_), little);
}

TEST_F(GptDataTest, PrefixesMayContainDots) {
  write_dataset(folder_ / "d1.v2", {{"sequences", 60}, {"longest", 20}, {"salt", 5}});
  const auto tokens = first(options_);
  options_.blend->prefixes[0] = (folder_ / "d1.v2").string();
  const auto dotted = first(options_);
  EXPECT_NE(dotted, tokens);
  options_.blend->prefixes[0] += ".bin";
  EXPECT_EQ(first(options_), dotted);
}

TEST_F(GptDataTest, RefusesBlendsLargerThanTheirData) {
  const GptSamplesOptions one{.begin = 0, .end = 60, .wanted = 1, .sequence_length = 16, .cache = folder_ / "cache"};
  std::vector<std::shared_ptr<const GptSamples>> parts;
  for (const char* name : {"d1", "d2"})
    parts.push_back(std::make_shared<const GptSamples>(std::make_shared<const IndexedDataset>(folder_ / name), one));
  EXPECT_THAT(message_of<DataError>([&] {
                BlendedSamples(parts, {1, 1}, 400, folder_ / "cache");
              }),
              HasSubstr("give it a smaller weight"));
}

TEST_F(GptDataTest, CountsUsesOfEachDataset) {
  const auto train = open_gpt_data(options_)[0];
  const auto uses = train->use_of(100);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_NEAR(static_cast<double>(uses[0].samples), 25, 1);
  EXPECT_EQ(uses[0].samples + uses[1].samples, 100);
  const auto tokens = static_cast<double>(dynamic_cast<const BlendedSamples&>(*train).parts()[1]->epochs().tokens);
  EXPECT_DOUBLE_EQ(uses[1].epochs, static_cast<double>(uses[1].samples) * 16 / tokens);
  EXPECT_EQ(train->use_of(0)[0].samples, 0);
}

// Residency of a file of one page.
bool is_in_memory(const MappedFile& file) {
  unsigned char here = 0;
  ::mincore(const_cast<std::byte*>(file.bytes().data()), 1, &here);
  return (here & 1) != 0;
}

TEST_F(GptDataTest, PrefetchRequestsTokensOfEachDataset) {
  std::vector<MappedFile> files;
  for (const char* name : {"d1.bin", "d2.bin"}) {
    const int fd = ::open((folder_ / name).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::fsync(fd), 0);
    ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ::close(fd);
    files.emplace_back(folder_ / name);
  }
  const auto train = open_gpt_data(options_)[0];
  if (is_in_memory(files[0]) || is_in_memory(files[1])) GTEST_SKIP() << "this file system is in memory";
  for (int64_t i = 0; i < 16; ++i) train->prefetch(i);  // a quarter of the first dataset
  EXPECT_TRUE(test::comes_true([&] { return is_in_memory(files[0]) && is_in_memory(files[1]); }));
  EXPECT_THAT(message_of<DataError>([&] { train->prefetch(*train->size()); }), HasSubstr("is asked for"));
}

TEST_F(GptDataTest, RefusesUnreadableData) {
  const auto train = open_gpt_data(options_)[0];
  std::vector<int32_t> tokens(17);
  EXPECT_THAT(message_of<DataError>([&] { train->read(*train->size(), tokens); }), HasSubstr("is asked for"));
  GptDataOptions none = options_;
  none.blend->prefixes[1] = (folder_ / "none").string();
  EXPECT_THAT(refused(none), HasSubstr("there is no file " + (folder_ / "none.bin").string()));
  GptDataOptions little = options_;
  little.shares = parse_split("1000,1");
  EXPECT_THAT(refused(little), HasSubstr("of its 60 sequences the valid split has 0"));
  GptDataOptions whole = options_;
  whole.whole[1] = true;
  EXPECT_THAT(message_of<ConfigError>([&] { open_gpt_data(whole); }),
              HasSubstr("every sample of the valid split is read once, and its datasets have weights"));
  GptDataOptions few = options_;
  few.whole[1] = true;
  few.blend = Blend{{(folder_ / "d1").string()}, {}};
  few.shares = parse_split("59,1");
  few.sequence_length = 64;
  EXPECT_THAT(refused(few), HasSubstr("too few for a sample of 64"));
  GptDataOptions full = options_;
  full.cache = folder_ / "d1.bin";  // a file
  EXPECT_THAT(message_of<IoError>([&] { open_gpt_data(full); }), HasSubstr("--data-cache-path"));
}

}  // namespace
}  // namespace witan::megatron
