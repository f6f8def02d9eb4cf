// Flags of the commands that read text, spelled like the keys of a configuration.
#pragma once

#include "witan/data/corpus/corpus.h"

namespace CLI {
class App;
}

namespace witan::cli {

// --json-key, --bad-row-share and --replace-invalid-utf8.
void add_text_args(CLI::App& command, CorpusOptions& options);

}  // namespace witan::cli
