#include "witan/planner/changes.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/fields.h"

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

namespace {

// As a shell takes it for one word.
std::string quoted(const std::string& value) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./,=:@%+").find(c) != std::string_view::npos;
  };
  if (!value.empty() && std::ranges::all_of(value, plain)) return value;
  std::string text = "'";
  for (const char c : value) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string flags_of(const Changes& changes) {
  std::string text;
  for (const auto& [key, value] : changes) text += cat(text.empty() ? "" : " ", flag_name(key), " ", quoted(value));
  return text;
}

}  // namespace witan
