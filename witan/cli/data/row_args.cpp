#include "witan/cli/data/row_args.h"

#include <fmt/core.h>

#include <algorithm>

#include "witan/base/counted.h"
#include "witan/base/text.h"
#include "witan/data/corpus.h"

namespace witan::cli {

void add_row_args(CLI::App& command, RowArgs& args, const std::string& output_help) {
  add_option(command, "inputs", args.inputs, "Files and folders of text or JSON Lines, separated by spaces or commas")
      .type_name("");
  add_option(command, "--output", args.output, output_help).type_name("FILE");
  add_option(command, "--json-key", args.rows.text_key,
             "Rows must hold text under this key; without it every JSON object is a row. It is also the key that plain "
             "text gets (text)")
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
             "Deal the rows out in turn to FILE.chunk.00.jsonl, FILE.chunk.01.jsonl and so on")
      .type_name("N")
      .range(int64_t{1}, int64_t{256});
  add_option(command, "--valid", parts.valid,
             "Take the first N rows of each chunk (without --chunks: of all) out for FILE.val.jsonl")
      .type_name("N")
      .range(int64_t{1}, int64_t{1} << 40);
}

std::vector<Source> sources_of(const RowArgs& args, const std::string& command, Progress& progress) {
  require<UsageError>(!args.inputs.empty(), command, ": give files or folders of text or JSON Lines");
  require<UsageError>(!args.output.empty(), command, ": give the file to write: --output FILE.jsonl");
  const Sources sources = find_sources(paths_of(args.inputs));
  if (!sources.skipped.empty()) progress.note("warning: skipped: " + describe_skipped(sources.skipped));
  CorpusOptions read;
  if (!args.rows.text_key.empty()) read.json_key = args.rows.text_key;
  read.replace_invalid_utf8 = args.rows.replace_invalid_utf8;
  check_encoding(sources.files, read);
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

void copy_and_print(Context& context, Progress& progress, const std::vector<Source>& sources, const std::string& output,
                    const CopyOptions& options) {
  PhaseProgress phases(progress);
  const MadeRows made = copy_rows(sources, output, options, [&](const RowProgress& at) { phases.update(at); });
  phases.end();
  progress.clear();
  print_rows(context.out, made);
}

}  // namespace witan::cli
