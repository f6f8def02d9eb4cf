#include "witan/cli/text_args.h"

#include <CLI/CLI.hpp>

namespace witan::cli {

void add_text_args(CLI::App& command, CorpusOptions& options) {
  command.add_option("--json-key", options.json_key, "JSON key of the text in JSON Lines rows")
      ->type_name("KEY")
      ->capture_default_str();
  command.add_option("--bad-row-share", options.bad_row_share, "Fail when more than this share of rows is unusable")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->capture_default_str();
  command.add_flag("--replace-invalid-utf8", options.replace_invalid_utf8,
                   "Replace invalid UTF-8 by U+FFFD instead of refusing the text");
}

}  // namespace witan::cli
