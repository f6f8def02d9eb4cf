#include "witan/tokenizer/pretokenizer.h"

namespace witan {

Pretokenizer::Pretokenizer(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    if (const Scanner scanner = scanner_for(pattern))
      splitters_.emplace_back(scanner);
    else
      splitters_.emplace_back(RegexSplitter(pattern));
  }
}

void Pretokenizer::split(std::string_view text, const PieceSink& sink) const {
  if (!text.empty()) split_from(0, text, sink);
}

void Pretokenizer::split_from(size_t level, std::string_view text, const PieceSink& sink) const {
  if (level == splitters_.size()) return sink(text);
  const auto apply = [&](const PieceSink& next) {
    if (const auto* scanner = std::get_if<Scanner>(&splitters_[level]))
      (*scanner)(text, next);
    else
      std::get<RegexSplitter>(splitters_[level]).split(text, next);
  };
  if (level + 1 == splitters_.size()) return apply(sink);
  apply([&](std::string_view piece) { split_from(level + 1, piece, sink); });
}

}  // namespace witan
