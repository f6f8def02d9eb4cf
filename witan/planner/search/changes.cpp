#include "witan/planner/search/changes.h"

#include <string>

#include "witan/base/config/fields.h"
#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

Changes changed_keys(RunConfig before, RunConfig now) {
  Changes changes;
  const Fields was = before.fields(), is = now.fields();
  for (size_t i = 0; i < was.size(); ++i) {
    if (was[i].text() == is[i].text()) continue;
    std::string plain = is[i].text();  // texts carry TOML's quotes
    std::erase(plain, '"');
    changes.emplace_back(is[i].name, std::move(plain));
  }
  return changes;
}

std::string flags_of(const Changes& changes) {
  std::string text;
  for (const auto& [key, value] : changes) text += cat(text.empty() ? "" : " ", flag_name(key), " ", shell_word(value));
  return text;
}

}  // namespace witan
