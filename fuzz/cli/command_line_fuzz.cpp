// The words of a command line, one per line, as flags of a configuration.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "fuzz/support.h"
#include "witan/cli/args/config_args.h"
#include "witan/train/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static RunConfig config;
  static CLI::App app("witan");
  static const cli::ConfigArgs args(app, config.fields());
  std::vector<std::string> words;
  std::string_view text = fuzz::text_of(data, size);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // The input must not name a file of this machine.
  if (std::ranges::any_of(words, [](const std::string& word) { return word.starts_with("--config"); })) return 0;
  std::ranges::reverse(words);  // the order that CLI11 expects
  config = RunConfig();
  try {
    app.parse(words);
    fuzz::expect_own_errors([] { args.apply_flags(); });
  } catch (const CLI::ParseError&) {  // becomes a UsageError in cli/run
  }
  return 0;
}
