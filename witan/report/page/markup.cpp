#include "witan/report/page/markup.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan {

std::string escape_html(std::string_view text) {
  std::string html;
  html.reserve(text.size());
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') html += c;
    }
  }
  return html;
}

std::string script_json(const nlohmann::ordered_json& json) {
  std::string safe;
  for (const char c : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    switch (c) {
      case '<':
        safe += "\\u003c";
        break;
      case '>':
        safe += "\\u003e";
        break;
      case '&':
        safe += "\\u0026";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string fill(std::string_view html, const std::vector<std::pair<std::string_view, std::string_view>>& values) {
  std::string filled;
  for (;;) {
    const size_t open = html.find("{{"), close = html.find("}}", open);
    if (close == std::string_view::npos) return filled.append(html);
    filled += html.substr(0, open);
    const std::string_view name = html.substr(open + 2, close - open - 2);
    const auto value = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
    require<std::logic_error>(value != values.end(), "the template asks for {{", name, "}}, which is not given");
    filled += value->second;
    html.remove_prefix(close + 2);
  }
}

}  // namespace witan
