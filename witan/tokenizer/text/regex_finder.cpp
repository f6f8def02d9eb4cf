#include "witan/tokenizer/text/regex_finder.h"

namespace witan {

RegexFinder::RegexFinder(const std::string& regex, const std::string& name)
    : any_(regex, name), whole_("\\A(?:" + regex + ")\\z", name) {}

std::optional<std::string_view> RegexFinder::last(std::string_view text) const {
  BoundedRegex::Search search(any_, text);
  std::optional<std::string_view> last;
  for (size_t from = 0; from <= text.size();) {
    const auto found = search.find(from);
    if (!found) break;
    const auto [begin, end] = found->group.value_or(std::pair(found->begin, found->end));
    last = text.substr(begin, end - begin);
    if (found->end == text.size()) break;
    from = found->end > found->begin ? found->end : found->end + search.length_of_character(found->end);
  }
  return last;
}

bool RegexFinder::matches(std::string_view text) const {
  return BoundedRegex::Search(whole_, text).find(0).has_value();
}

}  // namespace witan
