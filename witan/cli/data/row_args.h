// Flags, progress and results of the commands of `witan data` that read rows or documents.
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

// Help text about input files.
extern const char* const kInputsHelp;

// --workers, --memory and --temporary, each with one rule for all commands.
struct WorkArgs {
  int workers = 0;  // 0: as many as there are cores
  std::string memory, temporary;

  // The given number, or as many as the machine has cores.
  int threads() const;
  // Throws UsageError for less than 1 MB, and ConfigError for text that is not a size. `command`: "witan data shuffle".
  uint64_t memory_bytes(const std::string& command) const;
  // The given folder, or `otherwise`. Throws UsageError if it is not a folder.
  fs::path folder(const std::string& command, const fs::path& otherwise) const;
};
void add_work_args(CLI::App& command, WorkArgs& args, const std::string& memory_help,
                   const std::string& temporary_help);

// Adds --seed; `help` describes what is drawn with it.
Option add_seed(CLI::App& command, uint64_t& seed, const std::string& help);

// --include and --exclude: which files of a folder are read.
void add_selection_args(CLI::App& command, SourceSelection& selection);

// The path of an output of rows; NAME means NAME.jsonl. Throws UsageError for folders, devices and compressed files.
// `option`: "witan data split: --output".
fs::path output_of_rows(const std::string& output, const std::string& option);

// The files and folders to read, --output, --json-key, --bad-row-share and --replace-invalid-utf8.
struct RowArgs {
  std::vector<std::string> inputs;
  SourceSelection selection;  // for commands with add_selection_args()
  std::string output;
  RowOptions rows;
};
// `output_help`: the help of --output.
void add_row_args(CLI::App& command, RowArgs& args, const std::string& output_help);

// --chunks and --valid.
void add_chunk_args(CLI::App& command, PartOptions& parts);

// Throws UsageError unless inputs and --output are given.
void require_files(const RowArgs& args, const std::string& command);

// The sources that the arguments name, sorted by path. Prints skipped files and columns that cannot be written, and
// finds text in another encoding before any work. Throws UsageError if there are no sources, or if --output is missing
// or not a file, and as check_row_sources() does. `command`: "witan data split".
std::vector<Source> sources_of(const RowArgs& args, const std::string& command, Progress& progress);

// Prints a line of progress for each phase.
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

// The answer to signals while rows are written: unfinished work is kept beside the output.
InterruptNote note_of_rows(const fs::path& output);

// Copies rows with copy_rows(), with a line of progress, and prints the files that were written.
void copy_and_print(Context& context, Progress& progress, const std::vector<Source>& sources, const std::string& output,
                    const CopyOptions& options);

// Prints the files that were written.
void print_rows(std::FILE* out, const MadeRows& made);

}  // namespace witan::cli
