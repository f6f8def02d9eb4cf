// What `witan data shuffle`, `merge` and `split` share: flags of rows, the progress line, the result.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/options.h"
#include "witan/cli/command.h"
#include "witan/data/rows/copy_rows.h"
#include "witan/data/rows/row_job.h"
#include "witan/report/progress.h"

namespace witan::cli {

// The files and folders to read, --output, --json-key, --bad-row-share and --replace-invalid-utf8.
struct RowArgs {
  std::vector<std::string> inputs;
  std::string output;
  RowOptions rows;
};
// `output_help`: what --output names.
void add_row_args(CLI::App& command, RowArgs& args, const std::string& output_help);

// --chunks and --valid.
void add_chunk_args(CLI::App& command, PartOptions& parts);

// The sources that the arguments name, all together sorted by path; skipped files are named, and text in another
// encoding is found before any work. Throws UsageError where there are none or --output is missing; `command`: "witan
// data split"; and as check_encoding().
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

// Copies rows as copy_rows(), with a line of progress, and prints the files that were made.
void copy_and_print(Context& context, Progress& progress, const std::vector<Source>& sources, const std::string& output,
                    const CopyOptions& options);

// The files that were made.
void print_rows(std::FILE* out, const MadeRows& made);

}  // namespace witan::cli
