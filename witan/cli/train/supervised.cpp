#include "witan/cli/train/supervised.h"

#include <cstdlib>
#include <set>
#include <string_view>

namespace witan::cli {

std::optional<Supervised> find_supervised() {
  const char *layout = std::getenv(kLayoutVariable), *resumes = std::getenv(kResumeVariable),
             *call = std::getenv(kCallVariable);
  if (layout == nullptr) return std::nullopt;
  return Supervised{layout, resumes != nullptr && std::string_view(resumes) == "1", call == nullptr ? "" : call};
}

TrainOptions options_of(TrainOptions options, const Supervised& supervised) {
  if (!supervised.resumes) return options;
  options.fresh = false;
  options.trace_steps.clear();
  return options;
}

void lay_out(GivenConfig& given, const Supervised& supervised) {
  RunConfig before = given.config;
  const std::set<std::string> keys = parse_toml(given.config.fields(), supervised.layout, kLayoutVariable);
  const Fields was = before.fields(), is = given.config.fields();
  for (size_t i = 0; i < is.size(); ++i) {
    if (!keys.contains(is[i].name) || was[i].text() == is[i].text()) continue;
    given.sources[is[i].name] = ValueSource::flag;
    given.places[is[i].name] = "witan run";
  }
}

}  // namespace witan::cli
