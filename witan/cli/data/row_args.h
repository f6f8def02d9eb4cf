// What the commands of `witan data` that read rows or documents share: their flags, the progress line, the result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/cli/data/interrupt.h"
#include "witan/data/rows/row_job.h"
#include "witan/report/progress/progress.h"

namespace witan::cli {

// What the help says of files to read.
extern const char* const kInputsHelp;

// --workers, --memory and --temporary, each with one rule for all commands.
struct WorkArgs {
  int workers = 0;  // 0: as many as there are cores
  std::string memory, temporary;

  // Of the machine, where none were given.
  int threads() const;
  // Throws UsageError for less than 1 MB, `command`: "witan data shuffle"; ConfigError for no size.
  uint64_t memory_bytes(const std::string& command) const;
  // `otherwise` where none was given. Throws UsageError for what is no folder.
  fs::path folder(const std::string& command, const fs::path& otherwise) const;
};
void add_work_args(CLI::App& command, WorkArgs& args, const std::string& memory_help,
                   const std::string& temporary_help);

// --seed of what is drawn: `help` says what.
Option add_seed(CLI::App& command, uint64_t& seed, const std::string& help);

// --include and --exclude: which files of a folder are read.
void add_selection_args(CLI::App& command, SourceSelection& selection);

// The path to write rows to: NAME is NAME.jsonl. Throws UsageError for folders, devices and compressed files; `option`:
// "witan data split: --output".
fs::path output_of_rows(const std::string& output, const std::string& option);

// The files and folders to read, --output, --json-key, --bad-row-share and --replace-invalid-utf8.
struct RowArgs {
  std::vector<std::string> inputs;
  SourceSelection selection;  // of commands that have add_selection_args()
  std::string output;
  RowOptions rows;
};
// `output_help`: what --output names.
void add_row_args(CLI::App& command, RowArgs& args, const std::string& output_help);

// --chunks and --valid.
void add_chunk_args(CLI::App& command, PartOptions& parts);

// Throws UsageError unless it is said what to read and what to write.
void require_files(const RowArgs& args, const std::string& command);

// The sources that the arguments name, all together sorted by path; skipped files are named, and columns that cannot be
// written; text in another encoding is found before any work. Throws UsageError where there are none or --output is
// missing or no file; `command`: "witan data split"; and as check_row_sources().
std::vector<Source> sources_of(const RowArgs& args, const std::string& command, Progress& progress);

// A progress line for each phase.
class PhaseProgress {
 public:
  explicit PhaseProgress(Progress& progress) : progress_(progress) {}
  void update(const RowProgress& at);
  void end() { task_.reset(); }

 private:
  Progress& progress_;
  std::string phase_;
  std::optional<TaskProgress> task_;
};

// Answers signals while rows are written: the unfinished work is kept beside the output.
InterruptNote note_of_rows(const fs::path& output);

// Copies rows as copy_rows(), with a line of progress, and prints the files that were made.
void copy_and_print(Context& context, Progress& progress, const std::vector<Source>& sources, const std::string& output,
                    const CopyOptions& options);

// The files that were made.
void print_rows(std::FILE* out, const MadeRows& made);

}  // namespace witan::cli
