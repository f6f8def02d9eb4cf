#include "witan/data/corpus/preferences.h"

#include <gtest/gtest.h>

#include <memory>

#include "witan/data/datasets/conversation_dataset.h"
#include "witan/data/datasets/split.h"
#include "witan/data/samples/samples.h"

namespace witan {
namespace {

constexpr const char* kPlainTemplate =
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";
// Writes an answer without its thought once others follow.
constexpr const char* kForgettingTemplate =
    "{% for m in messages %}{% set c = m.content if loop.last else m.content.split('|')[-1] %}"
    "{{ '<' + m.role + '>' + c + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

ConversationFormat preference_format(const char* source = kPlainTemplate) {
  ConversationFormat made{ChatTemplate(source, "chat.jinja"), "", "</s>"};
  made.special_tokens = {"<end>", "</s>"};
  made.preferences = true;
  return made;
}

struct Answered {
  std::string text;
  std::vector<std::string> answers;

  bool operator==(const Answered&) const = default;
};

Answered answered(const Conversation& one) {
  Answered found{one.text, {}};
  for (const auto& [begin, end] : one.answers) found.answers.push_back(one.text.substr(begin, end - begin));
  return found;
}

// The chosen and the rejected text.
std::pair<Answered, Answered> pair(std::string_view row, const ConversationFormat& format = preference_format()) {
  const ConversationRow read = read_conversations(row, format);
  EXPECT_EQ(read.reason, "") << row;
  if (read.conversations.size() != 2) return {};
  EXPECT_EQ(read.conversations[0].pair, PairPlace::chosen);
  EXPECT_EQ(read.conversations[1].pair, PairPlace::rejected);
  return {answered(read.conversations[0]), answered(read.conversations[1])};
}

std::string refusal(std::string_view row, const ConversationFormat& format = preference_format()) {
  return read_conversations(row, format).reason;
}

TEST(Preferences, OfTextsAreTakenAsTheyAre) {
  const auto [chosen, rejected] = pair(R"({"prompt": "2+2=", "chosen": "4", "rejected": " five"})");
  EXPECT_EQ(chosen, (Answered{"2+2=4</s>", {"4</s>"}}));
  EXPECT_EQ(rejected, (Answered{"2+2= five</s>", {" five</s>"}}));
  const ConversationRow read =
      read_conversations(R"({"prompt": "a</s>", "chosen": "b", "rejected": "c"})", preference_format());
  // A special token that a row spells is text; only the end is one.
  EXPECT_EQ(read.conversations[0].literal, (std::vector<TextSpan>{{0, 6}}));
}

TEST(Preferences, OfTextsWithoutAnEndOfTurnEndWithTheTokenizersEnd) {
  ConversationFormat format = preference_format();
  format.eos_token.clear();
  format.end_of_text = "<|endoftext|>";
  EXPECT_EQ(pair(R"({"prompt": "p ", "chosen": "b", "rejected": "c"})", format).first.text, "p b<|endoftext|>");
}

TEST(Preferences, WithoutAPromptShareTheirBeginning) {
  const auto [chosen, rejected] = pair(
      R"({"chosen": "\n\nHuman: hi\n\nAssistant: hello there", "rejected": "\n\nHuman: hi\n\nAssistant: hell no"})");
  EXPECT_EQ(chosen.answers, (std::vector<std::string>{" hello there</s>"}));
  EXPECT_EQ(rejected.answers, (std::vector<std::string>{" hell no</s>"}));
  EXPECT_NE(refusal(R"({"chosen": "a", "rejected": "b"})").find("do not begin alike"), std::string::npos);
}

TEST(Preferences, OfMessagesAreRendered) {
  const Answered good{"<user>q<end><assistant>yes<end>", {"yes<end>"}},
      bad{"<user>q<end><assistant>no<end>", {"no<end>"}};
  const auto expected = std::pair(good, bad);
  // A list as the prompt; whole conversations; the same with a prompt that repeats the question; answers as texts.
  EXPECT_EQ(pair(R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "yes"}],
                     "rejected": [{"role": "assistant", "content": "no"}]})"),
            expected);
  const char* whole =
      R"("chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}],
         "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no"}]})";
  EXPECT_EQ(pair(cat("{", whole)), expected);
  EXPECT_EQ(pair(cat(R"({"prompt": "q", )", whole)), expected);
  EXPECT_EQ(pair(R"({"prompt": [{"role": "user", "content": "q"}], "chosen": "yes", "rejected": "no"})"), expected);
  // Columns of tables may hold JSON in strings.
  EXPECT_EQ(pair(R"({"prompt": "[{\"role\": \"user\", \"content\": \"q\"}]", "chosen": "yes", "rejected": "no"})"),
            expected);
}

TEST(Preferences, LearnFromAnswersAfterThePromptAlone) {
  const auto [chosen, rejected] = pair(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                     {"role": "user", "content": "c"}],
          "chosen": [{"role": "assistant", "content": "d"}, {"role": "user", "content": "e"},
                     {"role": "assistant", "content": "f"}],
          "rejected": [{"role": "assistant", "content": "g"}]})");
  EXPECT_EQ(chosen.answers, (std::vector<std::string>{"d<end>", "f<end>"}));
  EXPECT_EQ(rejected.answers, (std::vector<std::string>{"g<end>"}));
}

TEST(Preferences, SayWhatIsWrongWithARow) {
  const auto refused = [](const char* row, const char* reason) {
    const std::string found = refusal(row);
    EXPECT_NE(found.find(reason), std::string::npos) << row << ": " << found;
  };
  refused(R"({"prompt": "p", "rejected": "r"})", "no key \"chosen\"");
  refused(R"({"prompt": "p", "chosen": "c"})", "no key \"rejected\"");
  refused(R"({"prompt": "p", "chosen": "c", "rejected": ""})", "\"rejected\" is empty");
  refused(R"({"prompt": "p", "chosen": "c", "rejected": "c"})", "are the same: neither can be preferred");
  refused(R"({"prompt": 7, "chosen": "c", "rejected": "r"})", "\"prompt\" is neither a text nor a list of messages");
  refused(R"({"prompt": "p", "chosen": "c", "rejected": [{"role": "assistant", "content": "r"}]})",
          "must both be texts, or both lists of messages");
  refused(R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [1], "rejected": "no"})",
          "\"chosen\" holds something else than messages");
  refused(R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "user", "content": "x"}],
              "rejected": "no"})",
          "\"chosen\" has no message of the assistant after the prompt");
  refused(R"({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]})",
          "do not begin with the same messages");
  const std::string forgetful = refusal(
      R"({"prompt": [{"role": "user", "content": "a"}],
          "chosen": [{"role": "assistant", "content": "t|d"}, {"role": "user", "content": "e"},
                     {"role": "assistant", "content": "f"}], "rejected": "no"})",
      preference_format(kForgettingTemplate));
  EXPECT_NE(forgetful.find("give a pair for each of them"), std::string::npos) << forgetful;
}

TEST(Preferences, HaveAHashOfTheirOwn) {
  ConversationFormat other = preference_format();
  other.preferences = false;
  EXPECT_NE(preference_format().hash(), other.hash());
  other = preference_format();
  other.end_of_text = "<|endoftext|>";
  EXPECT_NE(preference_format().hash(), other.hash());
}

// Encodes each byte as a token.
void encode_bytes(std::string_view text, std::span<const TextSpan>, std::vector<int32_t>& out) {
  for (const char byte : text) out.push_back(static_cast<unsigned char>(byte));
}

// Pairs of texts of 6 and 4 + `longer` tokens, whose first token is the pair's number.
std::shared_ptr<TokensInMemory> dataset_of_pairs(int64_t pairs, int64_t longer = 0) {
  auto tokens = std::make_shared<TokensInMemory>("pairs");
  for (int64_t i = 0; i < pairs; ++i)
    for (const float mark : {kChosenMark, kRejectedMark}) {
      const auto length = static_cast<size_t>(mark == kChosenMark ? 6 : 4 + longer);
      std::vector<int32_t> ids(length, 7);
      ids[0] = static_cast<int32_t>(i);
      std::vector<float> loss(length, 1);
      loss[0] = mark;
      tokens->add(std::move(ids), std::move(loss));
    }
  return tokens;
}

TEST(Preferences, MarkTheFirstTokenOfEachText) {
  const ConversationRow row =
      read_conversations(R"({"prompt": "ab", "chosen": "c", "rejected": "d"})", preference_format());
  EXPECT_EQ(encode_conversation(row.conversations[0], encode_bytes).loss, (std::vector<float>{2, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(encode_conversation(row.conversations[1], encode_bytes).loss.front(), kRejectedMark);
  EXPECT_TRUE(holds_pairs(*dataset_of_pairs(1)));
  TokensInMemory conversations("chats");
  conversations.add({1, 2}, {0, 1});
  EXPECT_FALSE(holds_pairs(conversations));
}

int32_t number_of(const TokenDataset& dataset, int64_t document) {
  int32_t number = -1;
  dataset.read(document, 0, {&number, 1});
  return number;
}

TEST(Preferences, StayTogetherInSplitsAndSamples) {
  const Split split = split_documents(dataset_of_pairs(21), {.held_out_fraction = 0.3});
  std::vector<bool> seen(21);
  for (const auto& part : {split.train, split.held_out}) {
    ASSERT_TRUE(holds_pairs(*part));
    ASSERT_EQ(part->documents() % 2, 0);
    int64_t tokens = 0;
    for (int64_t d = 0; d < part->documents(); d += 2) {
      EXPECT_EQ(number_of(*part, d), number_of(*part, d + 1));
      EXPECT_EQ(part->length(d), 6);
      EXPECT_EQ(part->length(d + 1), 4);
      seen[static_cast<size_t>(number_of(*part, d))] = true;
      tokens += 10;
    }
    EXPECT_EQ(part->tokens(), tokens);
  }
  EXPECT_EQ(std::ranges::count(seen, true), 21);
  for (const Packing packing : {Packing::none, Packing::greedy, Packing::best_fit}) {
    const Samples samples(split.train, {.sequence_length = 20, .packing = packing});
    EXPECT_EQ(samples.packed_size().documents, split.train->documents() / 2);
    int64_t pairs = 0;
    for (int64_t i = 0; i < samples.per_epoch(); ++i) {
      const auto pieces = samples.pieces_of(i);
      ASSERT_EQ(pieces.size() % 2, 0);
      for (size_t p = 0; p < pieces.size(); p += 2, ++pairs) {
        EXPECT_EQ(pieces[p].document % 2, 0);
        EXPECT_EQ(pieces[p + 1].document, pieces[p].document + 1);
        EXPECT_EQ(pieces[p].places, 5);
        EXPECT_EQ(pieces[p + 1].places, 3);
      }
    }
    EXPECT_EQ(pairs, split.train->documents() / 2);
  }
}

TEST(Preferences, ThatDoNotFitAreLeftOutWhole) {
  const auto message = [](const std::shared_ptr<TokensInMemory>& dataset) {
    try {
      const Samples samples(dataset, {.sequence_length = 20});
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message(dataset_of_pairs(3, 30)).find("no pair of answers whose texts"), std::string::npos);
  const auto mixed = dataset_of_pairs(3);
  mixed->add(std::vector<int32_t>(18, 1), std::vector<float>(18, kChosenMark));
  mixed->add(std::vector<int32_t>(18, 1), std::vector<float>(18, kRejectedMark));
  const Samples samples(mixed, {.sequence_length = 20});
  EXPECT_EQ(samples.packed_size().documents, 3);
  EXPECT_EQ(samples.packed_size().left_out, 1);
  const auto torn = dataset_of_pairs(2);
  torn->add({1, 2}, {kRejectedMark, 1});
  torn->add({1, 2}, {kChosenMark, 1});
  EXPECT_THROW(Samples(torn, {.sequence_length = 20}), CorruptionError);
}

}  // namespace
}  // namespace witan
