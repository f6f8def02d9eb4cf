#include "witan/data/datasets/conversation_dataset.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "data/data_support.h"
#include "witan/data/batches/batch.h"
#include "witan/data/datasets/indexed_dataset.h"
#include "witan/data/datasets/split.h"
#include "witan/data/prepare/prepare.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Conversation c has tokens 100 c, 100 c + 1, ...; its second half is trained on.
std::shared_ptr<TokensInMemory> conversations(const std::vector<int64_t>& lengths) {
  auto made = std::make_shared<TokensInMemory>("memory");
  for (size_t c = 0; c < lengths.size(); ++c) {
    std::vector<int32_t> tokens;
    std::vector<float> loss;
    for (int64_t i = 0; i < lengths[c]; ++i) {
      tokens.push_back(static_cast<int32_t>(100 * c) + static_cast<int32_t>(i));
      loss.push_back(i >= lengths[c] / 2 ? 1 : 0);
    }
    made->add(std::move(tokens), std::move(loss));
  }
  return made;
}

// Expected values are computed per conversation, independently of the batch's code.
TEST(ConversationBatches, SeparateConversationsAndCountOnlyAnswers) {
  const auto data = conversations({4, 9, 3, 6, 30, 2});
  const Samples samples(data, {.sequence_length = 12, .seed = 3, .packing = Packing::best_fit});
  std::set<int64_t> seen;
  for (int64_t index = 0; index < samples.per_epoch(); ++index) {
    const Batch batch = make_batch(samples, index, 1, {.end_of_text = 999});
    size_t at = 0;
    int32_t id = 0;
    for (const auto& piece : samples.pieces_of(index)) {
      const int64_t c = piece.document;
      EXPECT_TRUE(seen.insert(c).second);
      const int64_t length = data->length(c), used = std::min<int64_t>(length, 13);
      for (int64_t i = 0; i + 1 < used; ++i, ++at) {
        EXPECT_EQ(batch.tokens[at], 100 * c + i);
        EXPECT_EQ(batch.targets[at], 100 * c + i + 1);
        EXPECT_EQ(batch.positions[at], i);
        EXPECT_EQ(batch.sequence_ids[at], id);
        EXPECT_EQ(batch.loss_mask[at], i + 1 >= length / 2 ? 1 : 0);
      }
      ++id;
    }
    for (; at < 12; ++at) {
      EXPECT_EQ(batch.tokens[at], 999);
      EXPECT_EQ(batch.loss_mask[at], 0);
      EXPECT_EQ(batch.sequence_ids[at], kPadding);
    }
    EXPECT_EQ(batch.loss_tokens, std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f));
    EXPECT_GT(batch.loss_tokens, 0);
  }
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2, 3, 5})) << "the answer of the fourth is beyond the sample";
  EXPECT_EQ(samples.packed_size().documents, 5);
  EXPECT_EQ(samples.packed_size().left_out, 1);
  EXPECT_EQ(samples.packed_size().cut, 0);
  EXPECT_EQ(samples.packed_size().places, 3 + 8 + 2 + 5 + 1);
}

TEST(ConversationSamples, TruncateLongConversationsAndCoverAllInEveryEpoch) {
  const Samples samples(conversations({20, 5}), {.sequence_length = 12, .packing = Packing::none});
  EXPECT_EQ(samples.packed_size().cut, 1);
  EXPECT_EQ(samples.per_epoch(), 2);
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    const auto first = samples.pieces_of(2 * epoch), second = samples.pieces_of(2 * epoch + 1);
    EXPECT_EQ((std::set<int64_t>{first[0].document, second[0].document}), (std::set<int64_t>{0, 1}));
  }
  EXPECT_EQ(message_of<DataError>([] { const Samples none(conversations({40}), {.sequence_length = 8}); }),
            "memory has no conversation with a token to learn from in its first 9 tokens: give more conversations, or "
            "choose a larger seq_length");
}

TEST(ConversationSplit, HoldsOutWholeConversations) {
  const auto data = conversations({5, 5, 5, 5, 5, 5, 5, 5, 5, 5});
  const Split split = split_documents(data, {.held_out_fraction = 0.2, .least_tokens = 1000});
  EXPECT_EQ(split.held_out->documents(), 2);
  EXPECT_EQ(split.train->documents(), 8);
  EXPECT_TRUE(split.train->conversations());
  std::vector<float> loss(5);
  split.held_out->read_loss(0, 0, loss);
  EXPECT_EQ(loss, (std::vector<float>{0, 0, 1, 1, 1}));
  EXPECT_EQ(split_documents(conversations({3, 90}), {.held_out_fraction = 0.01}).train->documents(), 1);
  EXPECT_THAT(message_of<DataError>([] { split_documents(conversations({9}), {}); }), HasSubstr("give more"));
}

// Every byte is a token, and <|end|> is another one.
TextEncoder chat_encoder() {
  TextEncoder encoder;
  encoder.encode = [](std::string_view text, std::vector<int32_t>& out) {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  };
  encoder.encode_chat = [](std::string_view text, std::span<const TextSpan>, std::vector<int32_t>& out) {
    for (constexpr std::string_view end = "<|end|>"; !text.empty();) {
      const bool special = text.starts_with(end);
      out.push_back(special ? 256 : static_cast<unsigned char>(text[0]));
      text.remove_prefix(special ? end.size() : 1);
    }
  };
  encoder.token_bytes = [](int32_t token) { return token == 256 ? 0 : 1; };
  encoder.vocab_size = 257;
  encoder.end_of_text = 256;
  encoder.hash = "bytes";
  return encoder;
}

PrepareOptions chat_options() {
  FoundChatTemplate found{
      ChatTemplate("{% for m in messages %}{{ m.role[0] + ':' + m.content + '<|end|>' }}{% endfor %}"
                   "{% if add_generation_prompt %}a:{% endif %}",
                   "chat"),
      "", ""};
  ConversationFormat format{std::move(found.chat), "", ""};
  format.special_tokens = {"<|end|>"};
  PrepareOptions options;
  options.corpus.conversations = std::make_shared<const ConversationFormat>(format);
  options.corpus.bad_row_share = 0.5;
  options.threads = 2;
  return options;
}

TEST(ConversationShards, ArePreparedOpenedAndReusedWithTheirMarks) {
  const TempFolder folder;
  put(folder / "chat.jsonl",
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"
      "\nbroken\n"
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]})"
      "\n");
  const auto sources = find_sources({folder / "chat.jsonl"}).files;
  const fs::path prefix = folder / "out/tokens";
  const PreparedDataset prepared = prepare_dataset(sources, chat_encoder(), prefix, chat_options());
  EXPECT_EQ(prepared.corpus.documents, 2);
  EXPECT_EQ(prepared.corpus.bad_rows, 1);
  EXPECT_THAT(read_file(prefix.string() + ".quarantine.jsonl"), HasSubstr("not valid JSON"));
  const auto data = open_tokens(prefix);
  ASSERT_TRUE(data->conversations());
  ASSERT_EQ(data->length(0), 10);
  std::vector<int32_t> tokens(10);
  std::vector<float> loss(10);
  data->read(0, 0, tokens);
  data->read_loss(0, 0, loss);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'u', ':', 'h', 'i', 256, 'a', ':', 'y', 'o', 256}));
  EXPECT_EQ(loss, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 1, 1, 1}));

  EXPECT_TRUE(prepare_dataset(sources, chat_encoder(), prefix, chat_options()).reused);
  fs::remove(prefix.string() + ".loss.idx");
  EXPECT_FALSE(prepare_dataset(sources, chat_encoder(), prefix, chat_options()).reused) << "missing marks";
  PrepareOptions other = chat_options();
  ConversationFormat all = *other.corpus.conversations;
  all.answers_only = false;
  other.corpus.conversations = std::make_shared<const ConversationFormat>(all);
  EXPECT_FALSE(prepare_dataset(sources, chat_encoder(), prefix, other).reused) << "another format";

  put(folder / "text.txt", "plain text");
  PrepareOptions plain;
  prepare_dataset(find_sources({folder / "text.txt"}).files, chat_encoder(), prefix, plain);
  EXPECT_FALSE(open_tokens(prefix)->conversations()) << "marks of the earlier shards are removed";
  EXPECT_THAT(message_of<DataError>([&] {
                prepare_dataset(find_sources({folder / "text.txt"}).files, chat_encoder(), folder / "no",
                                chat_options());
              }),
              HasSubstr("conversations are rows of JSON Lines, Parquet or Arrow, not plain text"));
}

// Struct columns give the same rows as JSON Lines; the second row has no answer.
TEST(ConversationShards, TablesGiveTheSameShardsAsRows) {
  const TempFolder folder;
  put(folder / "rows.jsonl",
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "name": "bot"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "no answer"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]})");
  PrepareOptions options = chat_options();
  options.corpus.bad_row_share = 0.5;
  const auto prepare = [&](const fs::path& path, const std::string& name) {
    const auto sources = find_sources({path}).files;
    check_encoding(sources, options.corpus);
    const PreparedDataset made = prepare_dataset(sources, chat_encoder(), folder / name, options);
    EXPECT_EQ(made.corpus.bad_rows, made.corpus.rows == 2 ? 0 : 1) << path;
    return read_file(folder / (name + ".bin")) + read_file(folder / (name + ".loss.bin"));
  };
  const std::string expected = prepare(folder / "rows.jsonl", "rows");
  EXPECT_EQ(prepare(golden("tables/other_chat.parquet"), "parquet"), expected);
  EXPECT_THAT(read_file(folder / "parquet.quarantine.jsonl"),
              AllOf(HasSubstr("\"line\":2,"), HasSubstr("no message is the assistant's"), HasSubstr("no answer")));
  EXPECT_EQ(prepare(golden("tables/other_chat.arrow"), "arrow"), expected);
  EXPECT_FALSE(prepare(golden("tables/other_pairs.parquet"), "pairs").empty());
}

// Pairs of messages, some without a prompt, and pairs of texts (make_preferences.py).
TEST(ConversationShards, TablesOfPreferencesGiveTheSameShardsAsRows) {
  const TempFolder folder;
  PrepareOptions options = chat_options();
  ConversationFormat format = *options.corpus.conversations;
  format.preferences = true;
  format.end_of_text = "<|end|>";
  options.corpus.conversations = std::make_shared<const ConversationFormat>(format);
  options.corpus.bad_row_share = 0;
  const auto prepare = [&](const std::string& name, int64_t rows) {
    const auto sources = find_sources({golden("tables/" + name)}).files;
    check_encoding(sources, options.corpus);
    const PreparedDataset made = prepare_dataset(sources, chat_encoder(), folder / name, options);
    EXPECT_EQ(made.corpus.rows, rows);
    EXPECT_EQ(made.corpus.documents, 2 * rows);
    return read_file(folder / (name + ".bin")) + read_file(folder / (name + ".idx")) +
           read_file(folder / (name + ".loss.bin"));
  };
  EXPECT_EQ(prepare("other_preferences.parquet", 9), prepare("other_preferences.jsonl", 9));
  EXPECT_EQ(prepare("other_text_preferences.parquet", 5), prepare("other_text_preferences.jsonl", 5));
}

TEST(LossMarks, AreWeightsOfThreeDigits) {
  EXPECT_EQ(mark_of_weight(0), 0);
  EXPECT_EQ(mark_of_weight(1), 1);
  EXPECT_EQ(mark_of_weight(0.5f), 0x3800) << "the bits of a float16";
  for (const float weight : {0.0f, 0.001f, 0.1f, 0.5f, 1.0f, 3.0f, 1000.0f}) {
    EXPECT_LT(mark_of_weight(weight), kLossMarks);
    EXPECT_NEAR(weight_of_mark(mark_of_weight(weight)), weight, weight / 2048);
  }
}

// Weights of messages multiply the losses of their tokens in the batch, and every target counts.
TEST(ConversationShards, KeepWeightsOfMessages) {
  const TempFolder folder;
  const fs::path prefix = folder / "tokens";
  const std::string row =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "weight": 0.25}]})";
  put(folder / "rows.jsonl", row + "\n" + row + "\n");  // one for each split
  prepare_dataset(find_sources({folder / "rows.jsonl"}).files, chat_encoder(), prefix, chat_options());
  const auto data = open_tokens(prefix);
  std::vector<float> loss(10);
  data->read_loss(0, 0, loss);
  EXPECT_EQ(loss, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0.25, 0.25, 0.25}));
  const Batch batch = make_batch(Samples(data, {.sequence_length = 12}), 0, 1, {});
  EXPECT_EQ(batch.loss_mask, (std::vector<float>{0, 0, 0, 0, 0, 0, 0.25, 0.25, 0.25, 0, 0, 0}));
  EXPECT_EQ(batch.loss_tokens, 3);
  EXPECT_EQ(look_ahead(batch, 1).loss_mask, (std::vector<float>{0, 0, 0, 0, 0, 0.25, 0.25, 0.25, 0, 0, 0, 0}));
}

TEST(ConversationShards, RefuseAnotherTokenizer) {
  const TempFolder folder;
  const auto write = [&](const std::string& name, const std::vector<std::vector<int32_t>>& documents) {
    IndexedWriter writer(folder / name, 300);
    for (const auto& document : documents) writer.add(document);
    writer.finish();
  };
  write("a", {{1, 2}, {3}});
  write("a.loss", {{0, 1}});
  EXPECT_THAT(message_of<CorruptionError>([&] { open_tokens(folder / "a"); }), HasSubstr("prepare them again"));
  write("a.loss", {{0}, {1, 1}});
  EXPECT_THAT(message_of<CorruptionError>([&] { open_tokens(folder / "a"); }),
              HasSubstr("conversation 0 has 1 marks, but 2 tokens"));
  write("a.loss", {{0, 2}, {1}});
  std::vector<float> loss(2);
  EXPECT_THAT(message_of<CorruptionError>([&] { open_tokens(folder / "a")->read_loss(0, 0, loss); }),
              HasSubstr("conversation 0 has a mark that is the weight of no token"));
}

}  // namespace
}  // namespace witan
