#include "witan/tasks/questions.h"

#include <algorithm>
#include <map>
#include <memory>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/tasks/python.h"
#include "witan/tokenizer/chat/chat_template.h"

namespace witan {
namespace {

using jinja::Items;
using jinja::Value;

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The value of a column, or the text of a template.
class RowField {
 public:
  RowField() = default;
  // `setting`: the column's name or the template.
  RowField(const std::string& setting, const std::string& where) : setting_(setting), where_(where) {}

  // A setting is a template only if no column has its name.
  Value of(const TaskRow& row) {
    if (const Value* column = find(row, setting_)) return *column;
    if (!parsed_) parsed_ = std::make_shared<TextTemplate>(setting_, where_);
    rendered_ = true;
    return Value::text(parsed_->render(row));
  }
  bool rendered() const { return rendered_; }
  const std::string& where() const { return where_; }

 private:
  std::string setting_, where_;
  std::shared_ptr<TextTemplate> parsed_;
  bool rendered_ = false;
};

// Applies a TaskPrompt to rows.
class PromptReader {
 public:
  PromptReader(const TaskPrompt& prompt, const std::string& file) : prompt_(prompt) {
    const auto field = [&](const Value& setting, const char* key) {
      return setting.string() ? RowField(*setting.string(), cat(file, ": ", key)) : RowField("", cat(file, ": ", key));
    };
    text_ = field(prompt.text, "doc_to_text");
    target_ = field(prompt.target, "doc_to_target");
    choices_ = field(prompt.choices, "doc_to_choice");
  }

  std::string text(const TaskRow& row) {
    const Value value = text_.of(row);
    require<DataError>(value.string() != nullptr, text_.where(), " gives ", type_name(value), ", not a text");
    require<DataError>(!has_choices() || !text_.rendered() || !is_digits(*value.string()), text_.where(), " gives ",
                       *value.string(),
                       ", the index of a choice, which is not supported: write the text of the question");
    return *value.string();
  }
  bool has_choices() const { return !prompt_.choices.is_undefined(); }
  std::vector<std::string> choices(const TaskRow& row) {
    Value value = prompt_.choices;
    if (value.string()) {
      value = choices_.of(row);
      if (choices_.rendered()) value = parse_python_literal(*value.string(), choices_.where());
    }
    require<DataError>(value.sequence() && !value.sequence()->items->empty(), choices_.where(), " gives ",
                       value.sequence() ? "an empty list" : type_name(value), ", not a list of choices");
    std::vector<std::string> texts;
    for (const Value& one : *value.sequence()->items) {
      require<DataError>(!one.is_none() && !one.sequence() && !one.entries(), choices_.where(), " gives a list with ",
                         type_name(one), ", not of texts");
      texts.push_back(str(one));
      require<DataError>(!texts.back().empty(), choices_.where(), " gives a list with an empty text");
    }
    return texts;
  }
  // An index, a text, or a list of either.
  Value target(const TaskRow& row) {
    if (!prompt_.target.string()) return prompt_.target;
    Value value = target_.of(row);
    if (!target_.rendered()) return value;
    const std::string& text = *value.string();
    if (has_choices() && is_digits(text)) return parse_python_literal(text, target_.where());
    if (!text.starts_with('[') || !text.ends_with(']')) return value;
    try {
      return parse_python_literal(text, target_.where());
    } catch (const DataError&) {
      return value;  // text in brackets
    }
  }
  // The answer that follows an example's question.
  std::string answer(const TaskRow& row) {
    Value value = target(row);
    if (value.sequence()) {
      require<DataError>(!value.sequence()->items->empty(), target_.where(), " gives an empty list");
      value = Value(value.sequence()->items->front());
    }
    if (value.string()) return *value.string();
    require<DataError>(has_choices() && is_number(value) && !value.as<double>(), target_.where(), " gives ",
                       type_name(value), ", which is not the answer of an example");
    const int64_t index = integer_of(value, "an answer");
    const auto all = choices(row);
    require<DataError>(index >= 0 && index < static_cast<int64_t>(all.size()), target_.where(), " gives ", index,
                       " for an example that has ", all.size(), " choices");
    return all[static_cast<size_t>(index)];
  }

 private:
  const TaskPrompt& prompt_;
  RowField text_, target_, choices_;
};

std::vector<int64_t> gold_of(const Value& target, const std::vector<std::string>& choices) {
  std::vector<int64_t> gold;
  for (const Value& one : target.sequence() ? *target.sequence()->items : Items{target}) {
    int64_t index = -1;
    if (one.as<int64_t>() || one.as<bool>())
      index = integer_of(one, "a label");
    else if (const auto found = one.string() ? std::ranges::find(choices, *one.string()) : choices.end();
             found != choices.end())
      index = found - choices.begin();
    if (index >= 0 && index < static_cast<int64_t>(choices.size())) gold.push_back(index);
  }
  return gold;
}

// Chooses the few-shot examples of each question, in the order of questions.
class Examples {
 public:
  Examples(const TaskConfig& task, const QuestionOptions& options)
      : task_(task), reader_(task.fewshot.prompt, task.file.string()), random_(options.seed) {
    count_ = static_cast<size_t>(options.fewshot >= 0 ? options.fewshot : task.fewshot.count);
    if (count_ > 0) rows_ = rows_of_examples();
  }

  // The examples before a question, which are never the question itself.
  std::string before(const TaskRow& question) {
    std::string text;
    if (count_ == 0) return text;
    for (const TaskRow* row : task_.fewshot.first ? first(question) : drawn(question))
      text +=
          reader_.text(*row) + task_.fewshot.prompt.target_delimiter + reader_.answer(*row) + task_.fewshot.delimiter;
    return text;
  }

 private:
  std::vector<TaskRow> rows_of_examples() const {
    const TaskFewshot& fewshot = task_.fewshot;
    if (fewshot.split) return read_split(task_, *fewshot.split);
    if (fewshot.samples) {
      std::vector<TaskRow> rows;
      for (const Value& sample : *fewshot.samples) {
        require<DataError>(sample.entries() != nullptr, task_.file.string(), ": fewshot_config.samples has ",
                           type_name(sample), ", not only rows");
        rows.push_back(*sample.entries());
      }
      return rows;
    }
    return read_split(task_, task_.training_split     ? *task_.training_split
                             : task_.validation_split ? *task_.validation_split
                                                      : *task_.test_split);
  }
  [[noreturn]] void too_few(size_t rows) const {
    throw DataError(cat(task_.file.string(), ": num_fewshot = ", count_, ", and there are ", rows,
                        " rows to choose from: give fewer (--num-fewshot)"));
  }
  static bool same(const TaskRow& a, const TaskRow& b) { return equal(Value::dict(a), Value::dict(b)); }
  // Decides like lm-evaluation-harness: by the names of the splits, which may both be missing.
  bool may_be_question() const { return task_.fewshot.split == task_.test_split; }

  std::vector<const TaskRow*> without(const TaskRow& question, const std::vector<size_t>& numbers) const {
    std::vector<const TaskRow*> rows;
    for (const size_t number : numbers)
      if (rows.size() < count_ && !same(rows_[number], question)) rows.push_back(&rows_[number]);
    return rows;
  }
  std::vector<const TaskRow*> first(const TaskRow& question) const {
    std::vector<const TaskRow*> rows;
    for (const TaskRow& row : rows_)
      if (rows.size() < count_ && (!may_be_question() || !same(row, question))) rows.push_back(&row);
    if (rows.size() < count_) too_few(rows.size());
    return rows;
  }
  std::vector<const TaskRow*> drawn(const TaskRow& question) {
    const size_t wanted = count_ + (may_be_question() ? 1 : 0);
    if (wanted > rows_.size()) too_few(rows_.size() - (may_be_question() ? 1 : 0));
    const auto numbers = random_.sample(rows_.size(), wanted);
    std::vector<const TaskRow*> rows;
    if (!may_be_question()) {
      for (const size_t number : numbers) rows.push_back(&rows_[number]);
      return rows;
    }
    rows = without(question, numbers);
    if (rows.size() == count_) return rows;
    // Copies of the question were drawn; draw again from all other rows.
    std::vector<const TaskRow*> others;
    for (const TaskRow& row : rows_)
      if (!same(row, question)) others.push_back(&row);
    if (others.size() < count_) too_few(others.size());
    rows.clear();
    for (const size_t number : random_.sample(others.size(), count_)) rows.push_back(others[number]);
    return rows;
  }

  const TaskConfig& task_;
  PromptReader reader_;
  PythonRandom random_;
  size_t count_;
  std::vector<TaskRow> rows_;
};

Question question_of(const TaskConfig& task, PromptReader& reader, const TaskRow& row, const std::string& before) {
  Question question;
  question.context = before + reader.text(row);
  const Value target = reader.target(row);
  if (task.output == TaskConfig::Output::loglikelihood) {
    require<DataError>(target.string() && !target.string()->empty(), task.file.string(), ": doc_to_target gives ",
                       target.string() ? "an empty text" : type_name(target), ", not the text to find likely");
    question.continuations.push_back(*target.string());
    return question;
  }
  question.choices = reader.choices(row);
  for (const std::string& choice : question.choices)
    question.continuations.push_back(task.prompt.target_delimiter + choice);
  question.gold = gold_of(target, question.choices);
  return question;
}

}  // namespace

Questions make_questions(const TaskConfig& task, const QuestionOptions& options) {
  std::vector<TaskRow> rows = read_split(task, task.split());
  if (options.limit > 0 && static_cast<int64_t>(rows.size()) > options.limit)
    rows.resize(static_cast<size_t>(options.limit));
  PromptReader reader(task.prompt, task.file.string());
  Examples examples(task, options);
  RowField description(task.description, cat(task.file.string(), ": description"));
  Questions questions;
  size_t unlabelled = 0, first_unlabelled = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    try {
      const std::string about = task.description.empty() ? "" : str(description.of(rows[i]));
      questions.all.push_back(question_of(task, reader, rows[i], about + examples.before(rows[i])));
    } catch (const DataError& error) {
      throw DataError(cat(error.what(), " (row ", i + 1, " of the split ", task.split(), ")"));
    }
    const bool labelled = task.output == TaskConfig::Output::loglikelihood || !questions.all.back().gold.empty();
    if (!labelled && unlabelled++ == 0) first_unlabelled = i + 1;
  }
  require<DataError>(unlabelled < rows.size(), task.file.string(), ": no row of the split ", task.split(),
                     " has a label among its choices: labels of test splits are often kept secret. Evaluate on "
                     "validation_split, without test_split");
  if (unlabelled > 0)
    questions.warnings.push_back(cat(task.name, ": ", unlabelled, " of ", rows.size(), " rows of the split ",
                                     task.split(), " have no label among their choices, the first of them row ",
                                     first_unlabelled, ": they count as wrong"));
  return questions;
}

}  // namespace witan
