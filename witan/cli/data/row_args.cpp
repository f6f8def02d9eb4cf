#include "witan/cli/data/row_args.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/data/rows/made_record.h"

namespace witan::cli {

const char* const kInputsHelp =
    "Files and folders of text, JSON Lines (both also .gz, .zst), Parquet, Arrow, WebDataset (.tar) or MDS, separated "
    "by "
    "spaces or commas";

namespace {

constexpr uint64_t kLeastMemory = 1'000'000;  // bytes
// Numbers beyond 64 bits are parsed as the largest one, which is therefore not accepted.
constexpr int64_t kMostSeed = 1'000'000'000'000'000'000;

}  // namespace

int WorkArgs::threads() const {
  return workers > 0 ? workers : usable_cores();
}

uint64_t WorkArgs::memory_bytes(const std::string& command) const {
  const uint64_t bytes = parse_bytes(memory);
  require<UsageError>(bytes >= kLeastMemory, command, ": --memory ", memory, " is too little: give 1MB or more");
  return bytes;
}

fs::path WorkArgs::folder(const std::string& command, const fs::path& otherwise) const {
  if (temporary.empty()) return otherwise;
  std::error_code none;
  require<UsageError>(!fs::exists(temporary, none) || fs::is_directory(temporary, none), command, ": --temporary ",
                      temporary, " is no folder: name one for temporary files");
  return temporary;
}

void add_work_args(CLI::App& command, WorkArgs& args, const std::string& memory_help,
                   const std::string& temporary_help) {
  add_option(command, "--memory", args.memory, memory_help + " (1MB or more)").type_name("SIZE").show_default();
  add_option(command, "--temporary", args.temporary, temporary_help).type_name("FOLDER");
  add_option(command, "--workers", args.workers, "Threads, 1 to 4096 (default: one for each core)")
      .type_name("N")
      .range(1, 4096);
}

Option add_seed(CLI::App& command, uint64_t& seed, const std::string& help) {
  return add_option(command, "--seed", seed, help + " (0 to 10^18)")
      .type_name("N")
      .range(int64_t{0}, kMostSeed)
      .show_default();
}

void add_selection_args(CLI::App& command, SourceSelection& selection) {
  add_option(
      command, "--include", selection.include,
      "Read only files of folders whose path below the folder matches one of these patterns (repeatable); * also "
      "matches /, and FOLDER/ means everything in it")
      .type_name("PATTERN")
      .one_argument();
  add_option(command, "--exclude", selection.exclude, "No files of folders that match one of these (repeatable)")
      .type_name("PATTERN")
      .one_argument();
}

fs::path output_of_rows(const std::string& output, const std::string& option) {
  const fs::path path = output;
  const auto refuse = [&](const std::string& why) { throw UsageError(cat(option, " ", output, why)); };
  std::error_code none;
  if (!path.has_filename() || fs::is_directory(path, none))
    refuse(cat(" is a folder: name a file in it, ", (path / "rows.jsonl").string()));
  if (fs::exists(path, none) && !fs::is_regular_file(path, none)) refuse(" is a device or a pipe: name a file");
  if (path.extension() == ".gz" || path.extension() == ".zst")
    refuse(" would be written without compression: name a .jsonl file, and compress it afterwards");
  return stem_of_rows(path) + ".jsonl";
}

void add_row_args(CLI::App& command, RowArgs& args, const std::string& output_help) {
  add_option(command, "inputs", args.inputs, kInputsHelp).type_name("");
  add_option(command, "--output", args.output, output_help).type_name("FILE");
  add_option(command, "--json-key", args.rows.text_key,
             "Rows must have text under this key, or path with dots; without it every JSON object is a row. It is also "
             "the key that plain text gets (text)")
      .type_name("KEY");
  add_option(command, "--bad-row-share", args.rows.bad_row_share, "Fail when more than this share of rows is unusable")
      .type_name("SHARE")
      .range(0.0, 1.0)
      .show_default();
  add_flag(command, "--replace-invalid-utf8", args.rows.replace_invalid_utf8,
           "Replace invalid UTF-8 by U+FFFD instead of refusing the text");
}

void add_chunk_args(CLI::App& command, PartOptions& parts) {
  add_option(command, "--chunks", parts.chunks,
             "Distribute rows in turn to FILE.chunk.00.jsonl, FILE.chunk.01.jsonl and so on (at most 256)")
      .type_name("N")
      .range(int64_t{1}, int64_t{256});
  add_option(command, "--valid", parts.valid,
             "Move the first N rows of each chunk (without --chunks: of all rows) to FILE.val.jsonl")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 40);
}

void require_files(const RowArgs& args, const std::string& command) {
  require<UsageError>(!args.inputs.empty(), command, ": give files or folders of text, JSON Lines or tables");
  require<UsageError>(!args.output.empty(), command, ": give the file to write: --output FILE.jsonl");
}

std::vector<Source> sources_of(const RowArgs& args, const std::string& command, Progress& progress) {
  require_files(args, command);
  output_of_rows(args.output, command + ": --output");
  const Sources sources = find_sources(paths_of(args.inputs), args.selection);
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  for (const std::string& note : check_row_sources(sources.files, args.rows)) progress.note("warning: " + note);
  return sources.files;
}

void PhaseProgress::update(const RowProgress& at) {
  if (!task_ || phase_ != at.phase) {
    phase_ = at.phase;
    task_.reset();
    task_.emplace(progress_, phase_, static_cast<double>(std::max<uint64_t>(at.total, 1)), "B");
  }
  task_->update(static_cast<double>(at.done));
}

void print_rows(std::FILE* out, const MadeRows& made) {
  constexpr size_t kShown = 5;
  uint64_t bytes = 0;
  for (const MadeFile& file : made.files) bytes += file.bytes;
  fmt::print(out, "rows          {} in {}, {}{}\n", made.rows, counted(static_cast<int64_t>(made.files.size()), "file"),
             format_bytes(static_cast<double>(bytes)),
             made.reused      ? " (made before)"
             : made.continued ? " (continued)"
                              : "");
  for (size_t i = 0; i < made.files.size(); ++i) {
    const bool shown = made.files.size() <= kShown || i < 2 || i + 2 >= made.files.size();
    const MadeFile& file = made.files[i];
    if (shown)
      fmt::print(out, "{:<13} {}, {}, {}\n", i == 0 ? "files" : "", file.path.string(), counted(file.rows, "row"),
                 format_bytes(static_cast<double>(file.bytes)));
    else if (i == 2)
      fmt::print(out, "{:<13} ...\n", "");
  }
  if (made.bad_rows > 0)
    fmt::print(out, "unusable rows {} of {}: see {}\n", made.bad_rows, made.rows + made.bad_rows,
               made.quarantine.string());
}

InterruptNote note_of_rows(const fs::path& output) {
  return InterruptNote(
      cat("what is done is kept in ", unfinished_folder(output).string(), "; the same command continues from there"));
}

void copy_and_print(Context& context, Progress& progress, const std::vector<Source>& sources, const std::string& output,
                    const CopyOptions& options) {
  const InterruptNote interrupt = note_of_rows(output);
  PhaseProgress phases(progress);
  const MadeRows made = copy_rows(sources, output, options, [&](const RowProgress& at) { phases.update(at); });
  phases.end();
  progress.clear();
  print_rows(context.out, made);
}

}  // namespace witan::cli
