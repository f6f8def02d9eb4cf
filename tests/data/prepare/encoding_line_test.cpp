#include "witan/data/prepare/encoding_line.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace witan {
namespace {

TextBatch batch_of(int number) {
  TextBatch batch;
  batch.documents.push_back({std::to_string(number), {}});
  batch.source_bytes = static_cast<uint64_t>(number);
  return batch;
}

// With `overtaken`, other threads encode later batches while one thread works on every seventh.
EncodingLine counting_line(int batches, std::vector<int>& taken, bool overtaken = false) {
  EncodingLine line;
  line.read = [batches](const PutBatch& put) {
    for (int i = 0; i < batches; ++i) put(batch_of(i));
  };
  line.encode = [overtaken, last = std::make_shared<std::atomic<int>>(-1)](const Conversation& document) {
    const int number = std::stoi(document.text);
    if (overtaken && number % 7 == 0)
      for (int latest = *last; latest <= number; latest = *last) last->wait(latest);
    for (int latest = *last; latest < number && !last->compare_exchange_weak(latest, number);) {
    }
    last->notify_all();
    return EncodedConversation{{number}, {}};
  };
  line.take = [&taken](const EncodedBatch& batch) { taken.push_back(batch.documents.at(0).tokens.at(0)); };
  return line;
}

TEST(EncodingLineTest, KeepsTheOrderOfBatches) {
  for (const int threads : {1, 2, 5}) {
    std::vector<int> taken;
    run_encoding_line(counting_line(300, taken, /*overtaken=*/threads > 1), threads);
    ASSERT_EQ(taken.size(), 300u);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(taken[static_cast<size_t>(i)], i) << threads;
  }
}

TEST(EncodingLineTest, EmptyInputGivesNoBatches) {
  std::vector<int> taken;
  run_encoding_line(counting_line(0, taken), 3);
  EXPECT_TRUE(taken.empty());
}

TEST(EncodingLineTest, HoldsFewBatchesInMemory) {
  std::vector<int> taken;
  std::atomic<int> put{0}, used{0}, most{0};
  EncodingLine line = counting_line(0, taken);
  line.read = [&](const PutBatch& give) {
    for (int i = 0; i < 200; ++i) {
      give(batch_of(i));
      most = std::max(most.load(), ++put - used.load());
    }
  };
  line.take = [&](const EncodedBatch&) { ++used; };
  run_encoding_line(line, 2);
  EXPECT_EQ(used, 200);
  EXPECT_LE(most, 2 * 2 + 2 + 1);
}

// Batches before the failing one in the text have been taken by then, and none after it.
TEST(EncodingLineTest, EndsWithTheFirstFailureInTextOrder) {
  std::vector<int> taken;
  const auto fail = [](const char* what) { throw std::runtime_error(what); };
  const auto message = [&](const EncodingLine& line) -> std::string {
    taken.clear();
    try {
      run_encoding_line(line, 3);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EncodingLine reading = counting_line(50, taken);
  reading.read = [&](const PutBatch& put) {
    for (int i = 0; i < 20; ++i) put(batch_of(i));
    fail("reading");
  };
  EXPECT_EQ(message(reading), "reading");
  EXPECT_EQ(taken.size(), 20u);
  EncodingLine encoding = counting_line(5000, taken);
  encoding.encode = [&](const Conversation& document) {
    if (document.text == "31" || document.text == "32") fail(document.text.c_str());
    return EncodedConversation{{std::stoi(document.text)}, {}};
  };
  EXPECT_EQ(message(encoding), "31");
  EXPECT_EQ(taken.size(), 31u);
  EncodingLine taking = counting_line(5000, taken);
  taking.take = [&](const EncodedBatch&) { fail("taking"); };
  EXPECT_EQ(message(taking), "taking");
}

TEST(EncodingLineTest, CallsBackWhileWaiting) {
  std::vector<int> taken;
  EncodingLine line = counting_line(1, taken);
  std::atomic<int> waited{0};
  line.wait = [&] { ++waited; };
  line.encode = [&](const Conversation&) {
    while (waited == 0) std::this_thread::yield();
    return EncodedConversation{{1}, {}};
  };
  run_encoding_line(line, 1);
  EXPECT_GE(waited, 1);
}

}  // namespace
}  // namespace witan
