#include "witan/cli/text_args.h"

#include <CLI/CLI.hpp>

namespace witan::cli {

void add_text_args(CLI::App& command, CorpusOptions& options) {
  command.add_option("--json-key", options.json_key, "key of the text in jsonl rows")
      ->type_name("KEY")
      ->capture_default_str();
  command.add_option("--bad-row-share", options.bad_row_share, "more broken rows than this share are an error")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->capture_default_str();
  command.add_flag("--replace-invalid-utf8", options.replace_invalid_utf8,
                   "put U+FFFD where text is not UTF-8, instead of refusing it");
}

}  // namespace witan::cli
