#include "witan/cli/args/text_args.h"

#include "witan/cli/args/options.h"

namespace witan::cli {

void add_text_args(CLI::App& command, CorpusOptions& options) {
  add_option(command, "--json-key", options.json_key,
             "Key of the text in rows of JSON Lines; its column in Parquet and Arrow, or a path with dots")
      .type_name("KEY")
      .show_default();
  add_option(command, "--bad-row-share", options.bad_row_share, "Fail when more than this share of rows is unusable")
      .type_name("SHARE")
      .range(0.0, 1.0)
      .show_default();
  add_flag(command, "--replace-invalid-utf8", options.replace_invalid_utf8,
           "Replace invalid UTF-8 by U+FFFD instead of refusing the text");
}

}  // namespace witan::cli
