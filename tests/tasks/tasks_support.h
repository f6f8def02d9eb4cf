// Task files in a temporary folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/message_of.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/tasks/task_config.h"

namespace witan::testing {

inline std::filesystem::path put(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

// A small task for rows.jsonl in the same folder; `more` lines are appended.
inline std::string small_task(const std::string& name, const std::string& more = "") {
  return "task: " + name +
         "\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
         "output_type: multiple_choice\ndoc_to_text: \"Q: {{q}}\"\ndoc_to_target: label\ndoc_to_choice: choices\n" +
         more;
}

inline const char* const kSmallRows =
    "{\"q\": \"one\", \"choices\": [\"a\", \"bc\"], \"label\": 0}\n"
    "{\"q\": \"two\", \"choices\": [\"d\", \"e\", \"f\"], \"label\": 2}\n"
    "{\"q\": \"three\", \"choices\": [\"g\", \"h\"], \"label\": 1}\n";

inline TaskConfig one_task(const std::filesystem::path& file) {
  return read_tasks({file}).tasks.at(0);
}
inline std::string refusal_of_task(const std::filesystem::path& file, const std::string& text) {
  put(file, text);
  return test::message_of<DataError>([&] { read_tasks({file}); });
}

}  // namespace witan::testing
