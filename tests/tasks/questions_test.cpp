#include "witan/tasks/questions.h"

#include <gmock/gmock.h>

#include "tasks/tasks_support.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kSmallRows;
using testing::one_task;
using testing::put;
using testing::small_task;

class QuestionsTest : public ::testing::Test {
 protected:
  QuestionsTest() { put(folder_ / "rows.jsonl", kSmallRows); }
  TaskConfig task(const std::string& more) { return one_task(put(folder_ / "t.yaml", small_task("small", more))); }
  std::vector<Question> ask(const std::string& more, const QuestionOptions& options = {}) {
    return make_questions(task(more), options).all;
  }
  std::string refusal(const std::string& more, const QuestionOptions& options = {}) {
    const TaskConfig config = task(more);
    return test::message_of<DataError>([&] { make_questions(config, options); });
  }
  test::TempFolder folder_;
};

TEST_F(QuestionsTest, ReadsContextAndChoicesFromARow) {
  const auto all = ask("");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].context, "Q: two");
  EXPECT_THAT(all[1].continuations, ElementsAre(" d", " e", " f"));
  EXPECT_THAT(all[1].choices, ElementsAre("d", "e", "f"));
  EXPECT_THAT(all[1].gold, ElementsAre(2));
  EXPECT_EQ(ask("", {.limit = 2}).size(), 2u);
}

TEST_F(QuestionsTest, LabelsMayBeIndicesTextsOrLists) {
  EXPECT_THAT(ask("doc_to_target: '{{label}}'\n")[2].gold, ElementsAre(1));
  EXPECT_THAT(ask("doc_to_target: '{{choices[-1]}}'\n")[0].gold, ElementsAre(1));
  EXPECT_THAT(ask("doc_to_target: '[0, {{label}}]'\n")[1].gold, ElementsAre(0, 2));
  EXPECT_THAT(ask("doc_to_target: 0\n")[2].gold, ElementsAre(0));
  EXPECT_THAT(ask("doc_to_choice: ['{x', z]\ndoc_to_target: z\n")[0].gold, ElementsAre(1)) << "text, not a column";
  EXPECT_THAT(ask("doc_to_choice: {A: x, B: z}\n")[2].choices, ElementsAre("x", "z"));
  EXPECT_THAT(ask("doc_to_choice: '{{[\"it''s \" + q, q]}}'\n")[0].choices, ElementsAre("it's one", "one"));
}

TEST_F(QuestionsTest, TemplatesKeepLineEndsAndSpaces) {
  EXPECT_EQ(ask("doc_to_text: \"  {% if q %}\\n  {% endif %}\\n{{q}}:\\n\"\n")[0].context, "  \n  \none:\n");
}

// Uses the first n examples, without the question itself.
TEST_F(QuestionsTest, FirstExamplesExcludeTheQuestion) {
  const std::string first = "num_fewshot: 2\nfewshot_split: test\nfewshot_config: {sampler: first_n}\n";
  const auto all = ask(first + "fewshot_delimiter: '|'\ntarget_delimiter: '='\ndescription: 'About {{q}}. '\n");
  EXPECT_EQ(all[0].context, "About one. Q: two=f|Q: three=h|Q: one");
  EXPECT_EQ(all[2].context, "About three. Q: one=a|Q: two=f|Q: three");
  EXPECT_EQ(ask(first, {.fewshot = 0})[0].context, "Q: one");
}

TEST_F(QuestionsTest, ExamplesMayComeFromTheFile) {
  const auto all =
      ask("num_fewshot: 1\nfewshot_config:\n  sampler: first_n\n  samples:\n"
          "    - {q: given, choices: [x, 'y'], label: 1}\n");
  EXPECT_EQ(all[1].context, "Q: given y\n\nQ: two");
}

TEST_F(QuestionsTest, RowsWithoutALabelCountAsWrong) {
  put(folder_ / "rows.jsonl",
      "{\"q\": \"one\", \"choices\": [\"a\"], \"label\": -1}\n"
      "{\"q\": \"two\", \"choices\": [\"b\"], \"label\": 0}\n"
      "{\"q\": \"two\", \"choices\": [\"b\"]}\n");
  const Questions questions = make_questions(task(""), {});
  EXPECT_TRUE(questions.all[0].gold.empty());
  EXPECT_THAT(questions.warnings, ElementsAre("small: 2 of 3 rows of the split test have no label among their choices, "
                                              "the first of them row 1: they count as wrong"));
  put(folder_ / "rows.jsonl", "{\"q\": \"one\", \"choices\": [\"a\"], \"label\": \"\"}\n");
  EXPECT_THAT(refusal(""), HasSubstr("no row of the split test has a label among its choices"));
}

TEST_F(QuestionsTest, RefusalsNameTheRow) {
  EXPECT_THAT(refusal("doc_to_text: \"{{qq}}\"\n"),
              HasSubstr("t.yaml: doc_to_text:1: qq is undefined (row 1 of the split test)"));
  EXPECT_THAT(refusal("doc_to_text: \"{{label}}\"\n"), HasSubstr("doc_to_text gives 0, the index of a choice"));
  EXPECT_THAT(refusal("doc_to_text: label\n"), HasSubstr("doc_to_text gives an integer, not a text"));
  EXPECT_THAT(refusal("doc_to_choice: q\n"), HasSubstr("doc_to_choice gives a string, not a list of choices"));
  EXPECT_THAT(refusal("doc_to_choice: \"{{q}}\"\n"), HasSubstr("which is not a list of choices"));
  EXPECT_THAT(refusal("num_fewshot: 3\nfewshot_split: test\n"),
              HasSubstr("num_fewshot = 3, and there are 2 rows to choose from"));
  EXPECT_THAT(refusal("", {.fewshot = 4}), HasSubstr("num_fewshot = 4, and there are 3 rows"));
}

class TaskRows : public QuestionsTest {};

TEST_F(TaskRows, FoldersHaveFilesNamedAfterSplits) {
  for (const char* file : {"set/plain/test-00000-of-00002.jsonl", "set/plain/test-00001-of-00002.jsonl",
                           "set/plain/tests.jsonl", "set/data/test.jsonl"})
    put(folder_ / file, kSmallRows);
  EXPECT_EQ(read_split(task("dataset_path: set\ndataset_name: plain\ndataset_kwargs: ~\n"), "test").size(), 6u);
  const TaskConfig other = task("dataset_path: set\ndataset_kwargs: ~\n");
  EXPECT_EQ(read_split(other, "test").size(), 3u);
  EXPECT_THAT(test::message_of<DataError>([&] { read_split(other, "train"); }),
              HasSubstr("the split train has no files in"));
}

TEST_F(TaskRows, KeepAllColumns) {
  put(folder_ / "rows.jsonl", "{\"a\": 1}\n{\"b\": \"x\", \"a\": 2}\n");
  const auto rows = read_split(task(""), "test");
  EXPECT_TRUE(find(rows[0], "b")->is_none());
  EXPECT_EQ(*find(rows[1], "b")->string(), "x");
}

TEST_F(TaskRows, RefusalsNameTheFix) {
  const auto refused = [&](const std::string& more, const std::string& split = "test") {
    const TaskConfig config = task(more);
    return test::message_of<DataError>([&] { read_split(config, split); });
  };
  EXPECT_THAT(
      refused("dataset_path: allenai/ai2_arc\ndataset_kwargs: ~\n"),
      HasSubstr("fetch it (`witan data fetch allenai/ai2_arc --to FOLDER`) and set dataset_path to the folder"));
  EXPECT_THAT(refused("", "tset"), HasSubstr("there is no split tset (did you mean test?)"));
  EXPECT_THAT(refused("dataset_kwargs: {data_files: rows.jsonl}\n"), HasSubstr("write `data_files: {test: FILE}`"));
  put(folder_ / "rows.txt", "text\n");
  EXPECT_THAT(refused("dataset_kwargs: {data_files: {test: rows.txt}}\n"), HasSubstr("not plain text"));
  put(folder_ / "rows.jsonl", "{\"q\": 1}\n[1]\n");
  EXPECT_THAT(refused(""), HasSubstr("rows.jsonl: row 2 is unusable"));
}

}  // namespace
}  // namespace witan
